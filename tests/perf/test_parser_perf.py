"""The time that parsing takes per byte, from 1 KB to 1 MB, on inputs made to be slow.

The shapes are what a model produces when it falls into a loop or is cut off: one tag or white
space up to the token limit, a string that never closes, calls that never end.
"""

from __future__ import annotations

import pytest

from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.format import Format
from hermes_rl.testing.parser_conformance import (
    CALLS,
    HostileTexts,
    Stretchable,
    parse_cost_s,
)
from tests.proof import Proof

PROOF = "perf"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
ALLOWED_GROWTH = 3.0
"""Of the time per byte from 10 KB to 1 MB; a quadratic scanner shows 100."""
FLOOR_S_PER_MB = 0.1
"""Below this a growth is noise and caches, whatever its ratio."""

B, E, SEP = (f"<\uff5ctool\u2581{n}\uff5c>" for n in ("call\u2581begin", "call\u2581end", "sep"))
FENCED = f"{B}function{SEP}f\n```json\n{{}}\n```"
NAMED = {
    "deepseek_v3": [
        ("", FENCED, ""),
        (f"{B}function{SEP}f\n```json\n", " ", ""),
        ("", f"{B}text{SEP}", ""),
    ],
    "deepseek_v3_1": [("", f"{B}name{SEP}", ""), ("", f"{B}f{SEP}{{}}{E}", "")],
    "kimi_k2": [
        ("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", " ", ""),
        ('<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "', "x", ""),
    ],
    "glm45": [
        ("<tool_call>f", "<arg_key>a</arg_key><arg_value>", ""),
        ("<tool_call>f", "\\n", "<arg_key>"),
    ],
    "qwen3_coder": [
        ("<tool_call>\n<function=f>\n", "<parameter=", ""),
        ("<tool_call>\n<function=f>\n<parameter=a>\n", ">", ""),
        ("<tool_call>\n<function=f>\n<parameter=a>\n", "<p>text</p>\n", "\n</parameter>"),
        ("<tool_call>\n<function=f>\n<parameter=a>\n", "</parameter> ", ""),
    ],
    "mistral": [("[TOOL_CALLS]", "{", ""), ('[TOOL_CALLS]f{"a": "', "{", "")],
    "minimax_m2": [('<minimax:tool_call><invoke name="f', "None", ">")],
    "gemma4": [
        ('<|tool_call>call:f{a:<|"|>', '<|"|>x', ""),
        ("", '<|tool_call>call:f{a:<|"|>', ""),
    ],
    "llama4_pythonic": [("[f(a='", "\\", ""), ("[f(a=", "'x' ", ")]"), ("[f(a=", "[", "")],
}
"""Per format: prefix, the part that repeats, suffix; what was slow in some parser once."""


def _shapes(parser: Format) -> dict[str, Stretchable]:
    """Return the shapes every format gets, made from what it renders, and its own."""
    whole = parser.render(CALLS)
    string = parser.render(CALLS[:1])
    inside = string[: string.index("a b.txt") + 1]
    shapes = {
        "whole calls": Stretchable("", whole + "\n", ""),
        "cut calls": Stretchable("", whole[: len(whole) * 2 // 3], ""),
        "string that never closes": Stretchable(inside, "x", ""),
        "quotes in a string": Stretchable(inside, '"', ""),
        "backslashes in a string": Stretchable(inside, "\\", ""),
        "long string": Stretchable(inside, 'line \\n "q" ', string[len(inside) :]),
        "spaces in a string": Stretchable(inside, " ", string[len(inside) :]),
        "open braces": Stretchable("", "{", ""),
        "empty objects": Stretchable("", "{}", ""),
        "closing think tags": Stretchable("", "</think>", ""),
        "opening think tags": Stretchable("", "<think>", ""),
        "thoughts and calls": Stretchable("", f"<think>a</think>{string}", ""),
        "spaces": Stretchable("", " ", "x"),
        "end tokens": Stretchable("", "</s>", ""),
        "nothing special": Stretchable("", "An ordinary sentence, again. ", ""),
    }
    for marker in HostileTexts(parser, seed=0).markers:
        shapes[f"{marker} repeated"] = Stretchable("", marker, "")
        shapes[f"{marker} repeated, then calls"] = Stretchable("", marker, whole)
        shapes[f"{marker} and spaces"] = Stretchable(marker, " ", "")
        shapes[f"{marker} and a brace, repeated"] = Stretchable("", marker + "{", "")
        shapes[f"{marker} and a quote, repeated"] = Stretchable("", marker + '{"a": "', "")
    own = NAMED.get(parser.name, ())
    return shapes | {f"own {n}": Stretchable(*parts) for n, parts in enumerate(own)}


@pytest.mark.perf
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", list_parsers())
def test_time_per_byte_is_flat(name: str, proof: Proof) -> None:
    parser = get_parser(name)
    assert isinstance(parser, Format)
    worst, slow = ("", 0.0), {}
    for shape, stretchable in _shapes(parser).items():
        cost = {
            size: parse_cost_s(parser, stretchable.text(size), repeats=5 if size < 50_000 else 1)
            for size in SIZES
        }
        per_mb = {size: cost[size] / size * 1e6 for size in SIZES}
        worst = max(worst, (shape, per_mb[SIZES[-1]]), key=lambda item: item[1])
        if per_mb[SIZES[-1]] > max(FLOOR_S_PER_MB, ALLOWED_GROWTH * per_mb[10_000]):
            slow[shape] = per_mb
    said = f"{worst[1]:.2f} s/MB"
    proof(f"{f'slowest text, {name}':<44} {said:>36}  time per byte flat; {worst[0]!r}")
    assert slow == {}
