"""gpt-oss: harmony messages.

A turn is a row of ``<|start|>assistant<|channel|>CHANNEL<|message|>BODY`` with ``<|end|>``,
``<|call|>`` or ``<|return|>`` behind; the prompt has already written the first
``<|start|>assistant``. Channel ``analysis`` is reasoning, ``final`` the answer. A message whose
header says ``to=functions.N`` (in front of or behind the channel, on any channel) is a call with
a JSON body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.json_calls import add_arguments, balanced, invalid_end, reject_open
from hermes_rl.parsers.reasoning import ReasoningTags
from hermes_rl.parsers.scan import Finder, Scan, skip_space
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["GPTOSSParser"]

_START = "<|start|>"
_CHANNEL = "<|channel|>"
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_PREFIX = "functions."
_FRONT = re.compile(r"\s*+(?:assistant)?+\s*+(?:to=[^\s<]++)?+\s*+(?=<\|channel\|>)")
_RECIPIENT = re.compile(r"(?:^|[\s>])to=([^\s<]++)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*+(\w++)")


class GPTOSSParser(Format):
    """Harmony messages; reasoning is a channel, not a block."""

    name: ClassVar[str] = "gpt_oss"
    reasoning_tags: ClassVar[tuple[ReasoningTags, ...]] = ()

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return _HarmonyScan(text, was_cut=finish_reason == "length").run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as commentary messages, ``content`` as one in front of them."""
        parts = []
        if content:
            parts.append(f"{_CHANNEL}commentary{_MESSAGE}{content}<|end|>")
        parts += [
            f"{_START}assistant{_CHANNEL}commentary to={_PREFIX}{call.name} "
            f"<|constrain|>json{_MESSAGE}{call.arguments}<|call|>"
            for call in calls
        ]
        return "".join(parts)

    def prose(self, scan: Scan) -> tuple[str, str]:
        """Return the bodies of answers; with no valid call, malformed ones as they are."""
        if scan.calls:
            return scan.prose()
        kept = Scan(scan.text, [piece for piece in scan.pieces if piece.kind == "markup"])
        return kept.prose() if kept.pieces else (scan.text, "")


class _HarmonyScan:
    def __init__(self, text: str, *, was_cut: bool) -> None:
        self._text = text
        self._finder = Finder(text)
        self._found = Scan(text)
        self._is_cut = was_cut or not text.rstrip().endswith(_ENDS)

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        reasoning: list[str] = []
        while position < len(self._text):
            start = self._header_start(position)
            body = self._finder.next(_MESSAGE, start)
            if body == len(self._text):
                self._unfinished_header(start)
                break
            while (again := self._finder.next(_START, start + 1)) < body:
                start = again
            position = self._message(start, body, reasoning)
        self._found.reasoning = "\n".join(filter(None, reasoning)) or None
        return self._found

    def _header_start(self, position: int) -> int:
        """Return where the next header begins; the text's length if there is none."""
        if _FRONT.match(self._text, position):
            return position
        return self._finder.first((_START, _CHANNEL), position)[0]

    def _message(self, start: int, message: int, reasoning: list[str]) -> int:
        """Read the message whose header is ``start`` to ``message``; return where to go on."""
        header = self._text[start:message]
        body = message + len(_MESSAGE)
        if (recipient := _RECIPIENT.search(header)) is not None:
            return self._call(start, body, recipient[1].removeprefix(_PREFIX))
        end = self._finder.first((*_ENDS, _START, _CHANNEL), body)[0]
        after = self._behind_end(end)
        channel = _CHANNEL_NAME.search(header)
        if channel is not None and channel[1] == "analysis":
            reasoning.append(self._text[body:end].strip())
            self._found.add_markup(start, after)
        else:
            self._found.add_markup(start, body)
            self._found.add_markup(end, after)
        return after

    def _unfinished_header(self, start: int) -> None:
        """Record a call whose header is cut off."""
        start = max(start, self._text.rfind(_START, start))
        header = self._text[start:]
        recipient = _RECIPIENT.search(header)
        if recipient is None:
            return
        self._found.markers += 1
        is_whole = recipient.end() < len(header)
        name = recipient[1].removeprefix(_PREFIX) if is_whole else None
        reason, end = "the call is cut off", len(self._text)
        self._found.reject(start, end, code="truncated", reason=reason, name=name)

    def _call(self, start: int, body: int, name: str) -> int:
        """Read the call whose arguments begin at ``body``; return where to go on."""
        text, found = self._text, self._found
        found.markers += 1
        body = skip_space(text, body)
        if body == len(text):
            found.reject(start, body, code="truncated", reason="the call is cut off", name=name)
            return body
        end = self._finder.first((*_ENDS, _START, _CHANNEL), body)[0]
        if not name:
            found.reject(start, end, code="name", reason="the call names no tool")
            return end
        if text[body] in "{[":
            span, is_balanced = balanced(text, body)
            if not is_balanced:
                end = invalid_end(self._finder, (_START,), _ENDS, body=body, failed=span.end)
                return reject_open(found, start, end, span=span, is_cut=self._is_cut, name=name)
            end = span.end
        add_arguments(found, start, end, name=name, raw=text[body:end])
        after = self._behind_end(skip_space(text, end))
        if not text[end:after].strip():
            return end
        found.add_markup(end, after)
        return after

    def _behind_end(self, position: int) -> int:
        """Return one past the end token at ``position``; ``position`` if there is none."""
        token = next((token for token in _ENDS if self._text.startswith(token, position)), "")
        return position + len(token)
