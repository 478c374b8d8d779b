"""A self-contained page of the groups in a JSONL file. Model output is escaped, always."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_rl.atropos.jsonl import read_groups
from hermes_rl.runlog.files import write_whole

__all__ = ["write_html"]

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; }}
details {{ border: 1px solid #8886; border-radius: 6px; margin: .5rem 0; padding: .3rem .8rem; }}
summary {{ cursor: pointer; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .8rem; }}
.role {{ font-weight: 600; }} .call {{ color: #27c; }}
.score {{ font-variant-numeric: tabular-nums; }}
</style></head><body><h1>{title}</h1>
"""


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(str(part.get("text", part)) for part in value)
    return str(value)


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    yield f'<div class="role">{html.escape(str(message.get("role")))}</div>'
    for key in ("reasoning_content", "content"):
        if text := _text(message.get(key)):
            yield f"<pre>{html.escape(text)}</pre>"
    for call in message.get("tool_calls") or []:
        function = call["function"]
        line = f"{function['name']}({function['arguments']})"
        yield f'<pre class="call">{html.escape(line)}</pre>'


def _group(number: int, group: Mapping[str, Any]) -> Iterator[str]:
    mark = group.get("hermes") or {}
    scores = ", ".join(f"{score:g}" for score in group["scores"])
    label = html.escape(f"group {mark.get('group', number)} {mark.get('item', '')}")
    yield f'<details><summary>{label} <span class="score">[{scores}]</span></summary>'
    for index, messages in enumerate(group.get("messages") or []):
        yield f"<details><summary>rollout {index + 1}, score {group['scores'][index]:g}</summary>"
        for message in messages:
            yield from _message(message)
        yield "</details>"
    yield "</details>\n"


def _page(title: str, groups: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    yield _HEAD.format(title=html.escape(title)).encode()
    for number, group in enumerate(groups):
        yield "".join(_group(number, group)).encode("utf-8", "replace")
    yield b"</body></html>\n"


def write_html(path: Path) -> Path:
    """Write the page of a JSONL file beside it and return its path."""
    page = path.with_suffix(".html")
    write_whole(page, _page(path.stem, read_groups(path)))
    return page
