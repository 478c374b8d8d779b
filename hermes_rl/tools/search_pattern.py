r"""Regular expressions of the search tool, in terms that every sandbox understands.

Models write the syntax of Python and Perl; what every image has is POSIX (``grep -E``). So a
pattern is translated: ``\d \w \s \b`` and their opposites, also inside brackets, ``(?:...)`` and
named groups, lazy and possessive quantifiers (the same for "does this line match"), a leading
``(?i)``, ``\t`` and ``\x41``. What POSIX cannot say (lookaround, ``\p{...}``) is an error that
says so, with its position. Matching is by bytes (locale C): ``.`` and ``\w`` do not cover a
non-ASCII letter as one, but text in the pattern matches itself in any alphabet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PatternError", "PosixPattern", "to_posix"]

MAX_PATTERN_CHARS = 10_000
_SPECIAL = frozenset(".[]()*+?{}|^$\\")
_CLASSES = {"d": "0-9", "w": "[:alnum:]_", "s": "[:space:]"}
_CLASS_NAMES = "alnum alpha blank cntrl digit graph lower print punct space upper word xdigit"
_NAMED_CLASSES = frozenset(_CLASS_NAMES.split())
_CONTROLS = {"t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0"}
_ANCHORS = {"A": "^", "z": "$", "Z": "$", "b": "\\b", "B": "\\B", "<": "\\<", ">": "\\>"}
_QUANTIFIER = re.compile(r"\*|\+|\?|\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\?(?:P?<[A-Za-z_]\w*>|:)")
_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")
_LINE_ONLY = "lines are matched one at a time, so a pattern cannot contain a line break"


class PatternError(ValueError):
    """A pattern that cannot be searched for; the tool turns it into its result."""


@dataclass(slots=True, frozen=True)
class PosixPattern:
    """An extended regular expression for ``grep -E`` in locale C."""

    text: str
    ignore_case: bool = False


def to_posix(pattern: str) -> PosixPattern:
    """Translate a pattern.

    Raises:
        PatternError: It is malformed or says more than POSIX can; names the position.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"the pattern has more than {MAX_PATTERN_CHARS:,} characters")
    return _Translation(pattern).run()


class _Translation:
    """One pass over a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.out: list[str] = []
        self.repeatable = False
        self.open_groups: list[int] = []
        self.groups = 0
        self.numbers: dict[int, int] = {}
        """By group number in the pattern: the number in the translation."""
        self.ignore_case = False

    def run(self) -> PosixPattern:
        self._leading_flags()
        handlers: dict[str, Callable[[], None]] = {
            "\\": self._escape,
            "[": self._bracket,
            "(": self._open,
            ")": self._close,
            "|": self._alternative,
            "*": self._quantify,
            "+": self._quantify,
            "?": self._quantify,
            "{": self._quantify,
        }
        while self.position < len(self.pattern):
            char = self.pattern[self.position]
            handlers.get(char, self._plain)()
        if self.open_groups:
            raise self._error("this parenthesis is never closed", self.open_groups[-1])
        return PosixPattern("".join(self.out), self.ignore_case)

    def _error(self, what: str, position: int | None = None) -> PatternError:
        at = self.position if position is None else position
        return PatternError(f"{what} (at character {at} of {self.pattern!r})")

    def _leading_flags(self) -> None:
        match = _FLAGS.match(self.pattern)
        if match is None:
            return
        unknown = set(match[1]) - set("imsu")
        if unknown:
            raise self._error(f"the flag {unknown.pop()!r} is not supported; (?i) is")
        self.ignore_case = "i" in match[1]
        self.position = match.end()

    def _emit(self, text: str) -> None:
        self.out.append(text)
        self.repeatable = True

    def _literal(self, char: str) -> None:
        if char == "\n":
            raise self._error(_LINE_ONLY)
        if char == "\0":
            raise self._error("a NUL character cannot be searched for")
        if char in _SPECIAL:
            self._emit(f"[{char}]" if char not in "^\\" else f"\\{char}")
        elif char.isascii():
            self._emit(char)
        else:
            self.groups += 1
            self._emit(f"({char})")  # Several bytes: a quantifier must take them together.

    def _plain(self) -> None:
        char = self.pattern[self.position]
        if char in "^$":
            self.out.append(char)
            self.repeatable = False
        elif char == ".":
            self._emit(".")
        else:
            self._literal(char)
        self.position += 1

    def _escape(self) -> None:
        if self.position + 1 >= len(self.pattern):
            raise self._error("the pattern ends in a backslash")
        char = self.pattern[self.position + 1]
        if char == "n":
            raise self._error(_LINE_ONLY)
        if char.lower() in _CLASSES:
            self._emit(f"[{'^' * char.isupper()}{_CLASSES[char.lower()]}]")
        elif char in _ANCHORS:
            self.out.append(_ANCHORS[char])
            self.repeatable = False
        elif char in "123456789":
            self._reference(int(char))
        elif char in "xu":
            self._literal(self._code_point())
            return
        elif char in _CONTROLS or char == "r":
            self._literal(_CONTROLS.get(char, "\r"))
        elif char.isalnum():
            raise self._error(f"\\{char} is not supported")
        else:
            self._literal(char)
        self.position += 2

    def _code_point(self) -> str:
        match = re.compile(r"\\(?:x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4}))").match(
            self.pattern, self.position
        )
        if match is None:
            raise self._error("\\x takes two and \\u four hexadecimal digits")
        self.position = match.end()
        code = int(next(filter(None, match.groups())), 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._error("no such character")
        return chr(code)

    def _reference(self, number: int) -> None:
        if number not in self.numbers:
            raise self._error(f"there is no group {number} before this")
        if self.numbers[number] > 9:
            raise self._error("only the first nine groups can be referred to")
        self._emit(f"\\{self.numbers[number]}")

    def _open(self) -> None:
        start = self.position
        self.position += 1
        captures = True
        if self.pattern[self.position : self.position + 1] == "?":
            match = _GROUP.match(self.pattern, self.position)
            if match is None:
                raise self._error("lookaround, flags inside and other (?...) are not supported")
            captures = match[0] != "?:"
            self.position = match.end()
        self.groups += 1
        if captures:
            self.numbers[len(self.numbers) + 1] = self.groups
        self.open_groups.append(start)
        self.out.append("(")
        self.repeatable = False

    def _close(self) -> None:
        if not self.open_groups:
            raise self._error("this parenthesis closes nothing; write \\) for the character")
        self.open_groups.pop()
        self._emit(")")
        self.position += 1

    def _alternative(self) -> None:
        self.out.append("|")
        self.position += 1
        self.repeatable = False

    def _quantify(self) -> None:
        match = _QUANTIFIER.match(self.pattern, self.position)
        is_interval = match is not None and match[0][0] == "{"
        if match is None or (is_interval and not (match[1] or match[3])):
            self._literal("{")  # Not an interval, so the character itself.
            self.position += 1
            return
        if not self.repeatable:
            raise self._error("nothing to repeat")
        self.position = match.end()
        lazy = self.pattern[self.position : self.position + 1]
        if lazy in ("?", "+"):
            self.position += 1
        text = match[0]
        if is_interval:
            low, high = match[1] or "0", match[3] or ("" if match[2] else match[1])
            if max(int(low), int(high or 0)) > 1000 or (high and int(high) < int(low)):
                raise self._error("bad repetition range", match.start())
            text = f"{{{low},{high}}}" if match[2] else f"{{{low}}}"
        self.out.append(text)
        self.repeatable = False

    def _bracket(self) -> None:
        start = self.position
        bracket = _Bracket(self.pattern, start)
        try:
            self.position = bracket.parse()
        except PatternError as error:
            raise self._error(str(error), start) from None
        if bracket.wide and not bracket.negated:
            self.groups += 1
            choices = [*bracket.wide, *([bracket.text()] if bracket.has_narrow else [])]
            self._emit(f"({'|'.join(choices)})")
        else:
            self._emit(bracket.text())


class _Bracket:
    """A bracket expression. POSIX has no escapes in it: places matter instead."""

    def __init__(self, pattern: str, start: int) -> None:
        self.pattern = pattern
        self.position = start + 1
        self.negated = pattern[self.position : self.position + 1] == "^"
        self.wide: list[str] = []
        self._classes: list[str] = []
        self._ranges: list[str] = []
        self._chars: set[str] = set()

    @property
    def has_narrow(self) -> bool:
        return bool(self._classes or self._ranges or self._chars)

    def parse(self) -> int:
        """Read to the closing bracket and return the position after it."""
        self.position += self.negated
        first = True
        while True:
            char = self.pattern[self.position : self.position + 1]
            if not char:
                raise PatternError("this bracket is never closed")
            if char == "]" and not first:
                return self.position + 1
            first = False
            if self.pattern.startswith("[:", self.position):
                self._named_class()
                continue
            low = self._item()
            if low is not None:
                self._range_or_char(low)

    def _named_class(self) -> None:
        end = self.pattern.find(":]", self.position)
        name = self.pattern[self.position + 2 : end] if end > 0 else ""
        if name not in _NAMED_CLASSES:
            raise PatternError(
                "there is no such character class; there are [:alpha:], [:digit:] ..."
            )
        self._classes.append("[:alnum:]_" if name == "word" else f"[:{name}:]")
        self.position = end + 2

    def _item(self) -> str | None:
        """Return the next character; None if it was a class like a digit's."""
        char = self.pattern[self.position]
        self.position += 1
        if char != "\\":
            return char
        escaped = self.pattern[self.position : self.position + 1]
        self.position += 1
        if escaped in _CLASSES:
            self._classes.append(_CLASSES[escaped])
            return None
        if escaped == "n":
            raise PatternError(_LINE_ONLY)
        if escaped in _CONTROLS or escaped == "r":
            return _CONTROLS.get(escaped, "\r")
        if escaped == "b":
            return "\b"
        if not escaped or escaped.isalnum():
            raise PatternError(f"\\{escaped} is not supported inside brackets")
        return escaped

    def _range_or_char(self, low: str) -> None:
        is_range = self.pattern[self.position : self.position + 1] == "-" and self.pattern[
            self.position + 1 : self.position + 2
        ] not in ("]", "")
        if not is_range:
            self._add(low)
            return
        self.position += 1
        high = self._item()
        if high is None or high < low:
            raise PatternError("bad character range")
        if not high.isascii():
            raise PatternError("ranges of non-ASCII characters are not supported")
        if low.isalnum() and high.isalnum():
            self._ranges.append(f"{low}-{high}")
        else:  # Ends such as "]" would be misread in their place.
            self._chars |= {chr(code) for code in range(ord(low), ord(high) + 1)} - {"\n", "\0"}

    def _add(self, char: str) -> None:
        if char in "\n\0":
            raise PatternError(_LINE_ONLY)
        if char.isascii():
            self._chars.add(char)
        elif not self.negated:
            self.wide.append(char)

    def text(self) -> str:
        """Return the POSIX form: ``]`` first, ``-`` last, ``^`` not first."""
        chars = self._chars
        body = "]" * ("]" in chars) + "".join(self._ranges)
        body += "".join(sorted(chars - set("]-^["))) + "".join(self._classes)
        body += "[" * ("[" in chars) + "^" * ("^" in chars) + "-" * ("-" in chars)
        if self.negated:
            return f"[^{body}]" if body else "."
        return {"^": "\\^", "^-": "[-^]"}.get(body, f"[{body}]")
