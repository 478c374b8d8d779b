"""What every tool-call parser must hold to, checked on hostile text; plug-ins run it too.

``fuzz(parser, seconds=20, seed=1)`` raises where the parser does not hold to it. The texts are
made from what the parser itself renders: its markers, calls cut, mixed and repeated, with quotes,
brackets and reasoning tags between them.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes_rl.errors import ParserFault
from hermes_rl.parsers.contract import parse_turn
from hermes_rl.types import JSONObject, ParseResult, ToolCall, ToolCallParser

__all__ = [
    "CALLS",
    "TOOLS",
    "HostileTexts",
    "RenderingParser",
    "Stretchable",
    "check_linear",
    "check_parse",
    "fuzz",
    "parse_cost_s",
]

_SMALL_CHARACTERS = 8_000
_GROWTH = 4
_NOTICEABLE_S = 0.02
_ALLOWED_RATIO = 2.0 * _GROWTH


class RenderingParser(ToolCallParser, Protocol):
    """A parser that can also write calls."""

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as a model of this family would."""
        ...


def _tool(name: str, properties: JSONObject) -> JSONObject:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS: list[JSONObject] = [
    _tool("write_file", {"path": {"type": "string"}, "text": {"type": "string"}}),
    _tool(
        "search",
        {
            "query": {"type": "string"},
            "limit": {"type": ["integer", "null"]},
            "deep": {"type": "boolean"},
            "filters": {"type": "object"},
            "paths": {"type": "array"},
        },
    ),
    _tool("stop", {}),
]
"""Schemas of the tools that :data:`CALLS` use."""

CALLS: list[ToolCall] = [
    ToolCall(
        "functions.write_file:0", "write_file", '{"path": "a b.txt", "text": "x\\ny {z} [1]"}'
    ),
    ToolCall(
        "a1b2c3d4e",
        "search",
        '{"query": "\\"q\\" \\\\d+", "limit": 3, "deep": true, '
        '"filters": {"k": [1, {}]}, "paths": []}',
    ),
    ToolCall("call_2", "stop", "{}"),
]
"""Calls of every shape: text, numbers, nested values, none at all."""

_TOKEN = re.compile(r"<[^<>]{1,60}>|\[[A-Z_]{2,20}\]|\w+|\s+|[^\w\s]")
_COMMON = (
    *("{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", ";", "=", "<", ">", "|", "`"),
    *(" ", "\n", "\t", "    ", "\\n", '\\"', "```", '"""', "'''"),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<|im_end|>", "</s>"),
    *("true", "null", "NaN", "None", "-1.5e3", "1e999", '"name"', '"arguments"', '"parameters"'),
    *('{"', '"}', '": ', "{}", "[]", "word", "\u00e9", "\U0001f30a", "\u2028", "\x00", "\ud800"),
)


@dataclass(slots=True, frozen=True)
class Stretchable:
    """A text whose middle can be repeated to any length."""

    prefix: str
    unit: str
    suffix: str

    def text(self, characters: int) -> str:
        """Return the text at about this length."""
        return self.prefix + self.unit * (characters // len(self.unit)) + self.suffix


class HostileTexts:
    """Draws texts for one parser; the same seed gives the same texts."""

    def __init__(self, parser: RenderingParser, *, seed: int) -> None:
        self._random = random.Random(f"{parser.name}/{seed}")
        self._rendered = [
            parser.render(CALLS),
            parser.render(CALLS[:1], "Some words first."),
            *(parser.render([call]) for call in CALLS),
        ]
        tokens = {token for text in self._rendered for token in _TOKEN.findall(text)}
        self.markers = sorted(token for token in tokens if len(token) > 3 and not token.isalnum())
        self._tokens = [*sorted(tokens), *self.markers * 3, *_COMMON]

    def draw(self) -> str:
        """Return the next text."""
        makers = (self._soup, self._mutated, self._cut, self._spliced, self._repeated)
        return self._random.choice(makers)()

    def stretchable(self) -> Stretchable:
        """Return a text to repeat the middle of: a loop that a model can fall into."""
        rendered = self._random.choice(self._rendered)
        cut = rendered[: self._random.randint(0, min(len(rendered), 200))]
        prefix = self._random.choice(("", self.unit(), self.draw()[:300], cut))
        return Stretchable(prefix, self.unit(), self._random.choice(("", self.unit())))

    def unit(self) -> str:
        """Return a short text that is worth repeating thousands of times."""
        return "".join(self._random.choices(self._tokens, k=self._random.randint(1, 6)))

    def _soup(self) -> str:
        return "".join(self._random.choices(self._tokens, k=self._random.randint(1, 60)))

    def _mutated(self) -> str:
        text = self._random.choice(self._rendered)
        for _ in range(self._random.randint(1, 4)):
            start = self._random.randint(0, len(text))
            end = start + self._random.choice((0, 1, 1, 2, 5, 20))
            text = text[:start] + self._random.choice(("", self.unit())) + text[end:]
        return text

    def _cut(self) -> str:
        text = self._random.choice(self._rendered)
        return text[: self._random.randint(0, len(text))]

    def _spliced(self) -> str:
        return "".join(self._mutated() for _ in range(self._random.randint(2, 4)))

    def _repeated(self) -> str:
        return self.unit() * self._random.randint(2, 30)


def check_parse(parser: ToolCallParser, text: str, finish_reason: str | None = None) -> ParseResult:
    """Parse ``text`` and check everything that holds for any text.

    Raises:
        AssertionError: The parser broke its contract.
    """
    try:
        result = parse_turn(parser, text, TOOLS, finish_reason)
    except ParserFault as fault:
        raise AssertionError(str(fault)) from fault
    content, calls = result
    assert content is None or content.strip(), "blank content is None"
    assert calls is None or calls, "no calls is None"
    for call in calls or ():
        assert call.name.strip(), "a call has a name"
        assert call.id, "a call has an id"
        assert _is_object(call.arguments), f"arguments are the JSON text of an object: {call}"
    for entry in result.invalid:
        assert entry.reason, "an invalid call has a reason"
        assert entry.kind in ("structure", "content")
    assert result == parser.parse(text, TOOLS, finish_reason), "parsing is deterministic"
    return result


def parse_cost_s(parser: ToolCallParser, text: str, *, repeats: int = 1) -> float:
    """Return the least CPU seconds that parsing ``text`` takes."""
    costs = []
    for _ in range(repeats):
        start = time.process_time()
        parser.parse(text, TOOLS)
        costs.append(time.process_time() - start)
    return min(costs)


def check_linear(parser: ToolCallParser, stretchable: Stretchable) -> None:
    """Check that a longer text costs in proportion.

    Raises:
        AssertionError: It costs far more.
    """
    large = stretchable.text(_SMALL_CHARACTERS * _GROWTH)
    if parse_cost_s(parser, large) < _NOTICEABLE_S * _GROWTH:
        return
    small_s = parse_cost_s(parser, stretchable.text(_SMALL_CHARACTERS), repeats=3)
    large_s = parse_cost_s(parser, large, repeats=3)
    ratio = large_s / max(small_s, _NOTICEABLE_S / _GROWTH)
    assert ratio < _ALLOWED_RATIO, f"{ratio:.0f} times the time for 4 times {stretchable!r}"


def fuzz(parser: RenderingParser, *, seconds: float, seed: int) -> int:
    """Check ``parser`` on hostile texts; every twentieth is stretched to see how costs grow.

    Returns:
        How many texts were parsed.

    Raises:
        AssertionError: The parser broke its contract; the message holds the text.
    """
    if not hasattr(parser, "render"):
        raise AssertionError(
            f"{parser.name} has no render(calls, content), which fuzz() makes its texts of; "
            "check_parse() needs none."
        )
    texts = HostileTexts(parser, seed=seed)
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
        if count % 20 == 0:
            check_linear(parser, texts.stretchable())
            continue
        text = texts.draw()
        try:
            check_parse(parser, text, (None, "stop", "length")[count % 3])
        except Exception as error:
            raise AssertionError(f"{parser.name} on {text!r}: {error!r}") from error
    return count


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except ValueError:
        return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
