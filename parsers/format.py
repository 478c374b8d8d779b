"""The frame that every tool-call format fills in: end tokens, reasoning, content, ids."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import ClassVar

from hermes_rl.parsers.reasoning import THINK, ReasoningSplit, ReasoningTags, split_reasoning
from hermes_rl.parsers.scan import Scan
from hermes_rl.types import InvalidCall, JSONObject, ParseResult, ToolCall

__all__ = ["END_TOKENS", "Format", "strip_end_tokens"]

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "</s>",
    "<|observation|>",
    "<|user|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""End-of-turn tokens that a decoder may leave in the text."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def strip_end_tokens(text: str, tokens: tuple[str, ...] = END_TOKENS) -> str:
    """Return ``text`` without the end tokens at its end, unchanged if there are none."""
    end = kept = len(text)
    while True:
        while end > 0 and text[end - 1].isspace():
            end -= 1
        token = next((token for token in tokens if text.endswith(token, 0, end)), None)
        if token is None:
            return text[:kept]
        end = kept = end - len(token)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


class Format(ABC):
    """A tool-call format. Subclasses say how calls look; this class does the rest.

    Parsers keep no state: one instance serves all rollouts.
    """

    name: ClassVar[str]
    reasoning_tags: ClassVar[tuple[ReasoningTags, ...]] = (THINK,)
    end_tokens: ClassVar[tuple[str, ...]] = END_TOKENS
    unquoted_markers: ClassVar[tuple[str, ...]] = ()
    """Start markers of a format whose argument text is not quoted, see
    :func:`~hermes_rl.parsers.reasoning.split_reasoning`."""

    @abstractmethod
    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``, which holds no reasoning block. Linear; never raises."""

    @abstractmethod
    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as a model of this family would; ``parse`` gives them back."""

    def parse(
        self,
        text: str,
        tools: Sequence[JSONObject] | None = None,
        finish_reason: str | None = None,
        *,
        reasoning_open: bool | None = None,
        id_seed: str = "",
    ) -> ParseResult:
        """Parse one whole completion. Never raises on any text; linear in its length.

        Args:
            text: Raw text as sampled.
            tools: Tool schemas in OpenAI form; drive types where the format is untyped.
            finish_reason: ``stop`` or ``length``, if known.
            reasoning_open: Whether the prompt ended inside an open reasoning block; None = not
                known: a lone closing tag is taken to close one.
            id_seed: Makes generated ids unique, e.g. rollout and turn; ids are a function of
                this, the text and the call's index only.
        """
        text = strip_end_tokens(_encodable(text), self.end_tokens)
        split, scan = self._split(text, tools, finish_reason, reasoning_open)
        invalid = scan.invalid
        if split is None:
            content, trailing = self.prose(scan)
            return self._result(scan, invalid, content, trailing, scan.reasoning, id_seed)
        if scan.text != split.rest:
            if split.is_open:  # nothing but reasoning: report the calls that were begun in it
                invalid = [entry for entry in scan.invalid if entry.name]
                scan = Scan("", markers=scan.markers)
            else:
                scan = self.scan(split.rest, tools, finish_reason)
                offset = split.rest_start
                invalid = [replace(each, position=each.position + offset) for each in scan.invalid]
        content, trailing = self.prose(scan)
        content = (split.before + content).strip()
        return self._result(scan, invalid, content, trailing, split.reasoning, id_seed)

    def prose(self, scan: Scan) -> tuple[str, str]:
        """Return content and trailing text; with no valid call the text unchanged, and ""."""
        return scan.prose() if scan.calls else (scan.text, "")

    def make_id(self, digest: bytes) -> str:
        """Return a call id made from 16 bytes."""
        return f"call_{digest.hex()[:24]}"

    def _split(
        self,
        text: str,
        tools: Sequence[JSONObject] | None,
        finish_reason: str | None,
        reasoning_open: bool | None,
    ) -> tuple[ReasoningSplit | None, Scan]:
        """Return the split, None if there is no reasoning, and the scan of the whole text."""
        scan = self.scan(text, tools, finish_reason)
        tags = [tag for pair in self.reasoning_tags for tag in (pair.open, pair.close)]
        if not tags or not (reasoning_open or any(tag in text for tag in tags)):
            return None, scan
        split = split_reasoning(
            text,
            self.reasoning_tags,
            reasoning_open=reasoning_open,
            pieces=scan.pieces,
            markers=self.unquoted_markers,
        )
        return (None if split.rest_start == 0 and split.rest == text else split), scan

    def _result(
        self,
        scan: Scan,
        invalid: Sequence[InvalidCall],
        content: str,
        trailing: str,
        reasoning: str | None,
        id_seed: str,
    ) -> ParseResult:
        text_digest = blake2b(scan.text.encode()).digest() if scan.calls else b""
        calls = [
            ToolCall(call.id or self._id(id_seed, text_digest, index), call.name, call.arguments)
            for index, call in enumerate(scan.calls)
        ]
        return ParseResult(
            content=content if content.strip() else None,
            tool_calls=calls or None,
            reasoning=reasoning,
            trailing=trailing,
            invalid=tuple(invalid),
            markers=scan.markers,
        )

    def _id(self, seed: str, text_digest: bytes, index: int) -> str:
        key = f"{seed}\0{index}\0".encode() + text_digest
        return self.make_id(blake2b(key, digest_size=16).digest())
