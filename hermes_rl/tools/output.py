"""Output of commands as the model sees it: text without terminal codes, cut to a size."""

from __future__ import annotations

import re
from typing import Any

import orjson

from hermes_rl.sandbox import ExecResult

__all__ = [
    "HEAD_SHARE",
    "clean_text",
    "cut_middle",
    "decode_tail",
    "encode_json",
    "shown_output",
]

HEAD_SHARE = 0.4
"""Of the characters kept, the share taken from the start; the rest comes from the end."""
MAX_UTF8_BYTES = 4
"""Bytes of the longest UTF-8 character."""

_TERMINAL_CODES = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    "|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # OSC: window titles, links
    "|[PX^_][^\x1b]*\x1b\\\\"  # DCS, SOS, PM, APC strings
    "|[ -/]+[0-~]|[0-OQ-WYZ\\\\`-~])"  # other escapes
)


def clean_text(text: str) -> str:
    """Remove terminal control sequences."""
    return _TERMINAL_CODES.sub("", text) if "\x1b" in text else text


def decode_tail(data: bytes, max_chars: int) -> str:
    """Return the last ``max_chars`` characters of ``data``, cleaned."""
    window = data[-(max_chars * MAX_UTF8_BYTES) :]
    text = window.decode("utf-8", "replace")
    if len(window) < len(data):
        text = text.lstrip("\ufffd")
    return clean_text(text)[-max_chars:]


def omission_marker(omitted: int, total: int) -> str:
    """Return the line that stands for what was left out."""
    return f"\n\n... [OUTPUT TRUNCATED - {omitted:,} chars omitted out of {total:,} total] ...\n\n"


def cut_middle(text: str, max_chars: int) -> str:
    """Keep the first 40 % and the last 60 % of ``max_chars`` characters."""
    if len(text) <= max_chars:
        return text
    return _joined(text, "", len(text), max_chars)


def _joined(head: str, tail: str, total: int, max_chars: int) -> str:
    """Join what was kept of a text of ``total`` characters; ``tail`` "" = it is in ``head``."""
    head_chars = int(max_chars * HEAD_SHARE)
    shown_tail = (tail or head)[-(max_chars - head_chars) :]
    shown_head = head[:head_chars]
    return (
        shown_head
        + omission_marker(total - len(shown_head) - len(shown_tail), total)
        + (shown_tail)
    )


def shown_output(result: ExecResult, max_chars: int) -> str:
    """Return a command's (merged) output, cleaned, stripped, cut to ``max_chars``.

    What the sandbox itself left out is counted in bytes, as if each were a character.
    """
    omitted = result.stdout_total - len(result.stdout)
    if omitted <= 0:
        return cut_middle(clean_text(result.text), max_chars).strip()
    head = result.stdout[: result.stdout_head].decode("utf-8", "replace").rstrip("\ufffd")
    tail = result.stdout[result.stdout_head :].decode("utf-8", "replace").lstrip("\ufffd")
    head, tail = clean_text(head), clean_text(tail)
    return _joined(head, tail, len(head) + omitted + len(tail), max_chars).strip()


def encode_json(value: Any) -> str:
    """Serialise ``value``; half surrogate pairs (from odd file names) become U+FFFD."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return orjson.dumps(_without_surrogates(value)).decode()


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace" if value.isascii() else "surrogatepass").decode(
            "utf-8", "replace"
        )
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(v) for key, v in value.items()}
    return value
