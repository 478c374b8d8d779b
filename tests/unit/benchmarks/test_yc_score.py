import math
from typing import Any

import pytest

from hermes_rl.benchmarks.yc_bench.score import Books, composite_score, outcome_of
from hermes_rl.benchmarks.yc_bench.task_set import KEPT_TURNS, SHOWN_TURNS, drop_old_turns

INITIAL = 25_000_000


def books(funds: int, *consumed: str, now: str = "2025-06-01 09:00:00") -> Books:
    return Books(
        funds_cents=funds,
        booked_cents=funds - INITIAL,
        sim_time=now,
        horizon_end="2026-01-01 09:00:00",
        consumed=frozenset(consumed),
        tasks={},
    )


@pytest.mark.parametrize(
    ("state", "outcome", "score"),
    [
        (books(INITIAL, "horizon_end"), "survived", 0.5 + 0.5 * math.log(2) / math.log(101)),
        (books(10 * INITIAL, "horizon_end"), "survived", 0.760),
        (books(100 * INITIAL, "horizon_end"), "survived", 1.0),
        (books(1000 * INITIAL, "horizon_end"), "survived", 1.0),
        (books(INITIAL, now="2026-01-01 09:00:00"), "survived", 0.575),
        (books(INITIAL), "incomplete", 0.075),
        (books(-1, "bankruptcy"), "bankrupt", 0.0),
        (books(-1), "bankrupt", 0.0),
        (books(5, "bankruptcy", "horizon_end"), "bankrupt", 0.0),
        (books(0, "horizon_end"), "survived", 0.0),
    ],
)
def test_score_table(state: Books, outcome: str, score: float) -> None:
    assert outcome_of(state) == outcome
    assert composite_score(state, INITIAL) == pytest.approx(score, abs=1e-3)


def conversation(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "go"},
    ]
    for number in range(turns):
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [{"id": str(number)}]},
            {"role": "tool", "tool_call_id": str(number), "content": "ok"},
        ]
    return messages


def test_a_short_game_keeps_its_whole_history() -> None:
    messages = conversation(SHOWN_TURNS)
    assert drop_old_turns(messages) is messages


def test_a_long_game_keeps_its_opening_and_latest_turns_and_says_what_is_missing() -> None:
    shown = drop_old_turns(conversation(SHOWN_TURNS + 1))
    assert [m["content"] for m in shown[:2]] == ["rules", "go"]
    assert f"{SHOWN_TURNS + 1 - KEPT_TURNS} earlier turns" in shown[2]["content"]
    assert sum(m["role"] == "assistant" for m in shown) == KEPT_TURNS
    assert shown[3]["role"] == "assistant"


def test_dropping_again_leaves_one_note_and_no_orphan_tool_result() -> None:
    shown = drop_old_turns(conversation(SHOWN_TURNS + 1))
    longer = drop_old_turns(shown + conversation(SHOWN_TURNS)[2:])
    notes = [m for m in longer if "earlier turns" in str(m.get("content"))]
    assert len(notes) == 1
    called = {c["id"] for m in longer for c in m.get("tool_calls") or []}
    assert {m["tool_call_id"] for m in longer if m["role"] == "tool"} <= called
