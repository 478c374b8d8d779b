import math

import pytest

from hermes_rl.runlog.exports import flat_metrics
from hermes_rl.runlog.schema import FailureRecord, RolloutRecord
from hermes_rl.runlog.scores import pass_at_k, summarise, wilson_interval


def record(
    task: str,
    attempt: int = 0,
    reward: float | None = 1.0,
    status: str = "finished",
    flags: tuple[str, ...] = (),
    **metadata: object,
) -> RolloutRecord:
    failed = FailureRecord(kind="Capacity", message="no room", phase="setup")
    return RolloutRecord(
        task_id=task,
        attempt=attempt,
        status=status,  # type: ignore[arg-type]
        reward=reward,
        passed=reward is not None and reward >= 1,
        flags=list(flags),
        metadata=metadata,
        failure=None if status == "finished" else failed,
        usage={"completion_tokens": 10, "requests": 2},
        finished_at="2026-01-01T00:00:00Z",
    )


@pytest.mark.parametrize(
    ("attempts", "passed", "k", "expected"),
    [
        (1, 1, 1, 1.0),
        (1, 0, 1, 0.0),
        (4, 2, 1, 0.5),
        (4, 2, 2, 1 - 1 / 6),
        (4, 2, 3, 1.0),
        (5, 1, 2, 1 - 6 / 10),
        (10, 3, 5, 1 - 21 / 252),
    ],
)
def test_pass_at_k_is_the_unbiased_estimator(
    attempts: int, passed: int, k: int, expected: float
) -> None:
    assert pass_at_k(attempts, passed, k) == pytest.approx(expected)


def test_pass_at_k_equals_the_mean_over_all_draws() -> None:
    from itertools import combinations

    outcomes = [True, False, True, False, False, False, True]
    for k in range(1, 8):
        draws = list(combinations(outcomes, k))
        assert pass_at_k(7, 3, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_wilson_interval_agrees_with_published_values() -> None:
    # Newcombe (1998), table I, method 3: 81 of 263 and 15 of 148.
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    # and 0 of 20, 1 of 29 of the same table
    assert wilson_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_errors_are_zero_in_the_headline_and_absent_in_the_second_figure() -> None:
    records = [
        record("a"),
        record("b", reward=0.5),
        record("c", reward=None, status="errored"),
        record("d", reward=1.0, status="errored"),
    ]
    summary = summarise(records, planned=4)
    assert summary.headline.rollouts == 4
    assert summary.headline.passed == 1
    assert summary.headline.pass_rate == 0.25
    assert summary.headline.mean_reward == pytest.approx(1.5 / 4)
    assert summary.without_errors.pass_rate == 0.5
    assert summary.without_errors.mean_reward == pytest.approx(0.75)
    assert summary.errors == {"Capacity": 2}
    assert summary.complete


def test_skipped_rollouts_are_in_no_figure_but_listed() -> None:
    summary = summarise([record("a"), record("b", reward=None, status="skipped")], planned=2)
    assert summary.headline.rollouts == 1
    assert summary.headline.pass_rate == 1.0
    assert summary.skipped == {"no room": 1}
    assert summary.complete


def test_flagged_passes_count_and_are_shown_beside() -> None:
    records = [
        record("a"),
        record("b", flags=("tamper_suspect: /bin/sh",)),
        record("c", reward=0.0, flags=("tamper_suspect: /bin/sh",)),
    ]
    summary = summarise(records, planned=3)
    assert summary.headline.passed == 2
    assert summary.flagged_passes == 1
    assert summary.flagged_as_zero.passed == 1
    assert summary.flagged_as_zero.rollouts == 3


def test_the_standard_error_treats_a_task_as_one_sample() -> None:
    one_each = summarise([record(str(i), reward=float(i % 2)) for i in range(10)], planned=10)
    agreeing = summarise(
        [record(str(i), k, reward=float(i % 2)) for i in range(10) for k in range(8)], planned=80
    )
    assert agreeing.headline.standard_error == pytest.approx(one_each.headline.standard_error)
    assert agreeing.headline.interval == pytest.approx(one_each.headline.interval)
    assert one_each.headline.standard_error == pytest.approx(math.sqrt(0.25 / 9))


def test_attempts_that_differ_by_chance_narrow_the_interval() -> None:
    tasks, attempts = 10, 8
    records = [
        record(str(i), k, reward=float((i + k) % 2)) for i in range(tasks) for k in range(attempts)
    ]
    assert summarise(records, planned=80).headline.interval == wilson_interval(0.5, 80)


def test_attempts_that_agree_in_part_count_in_part() -> None:
    records = [record(str(i), k, reward=float(k < i)) for i in range(9) for k in range(8)]
    interval = summarise(records, planned=72).headline.interval
    assert interval is not None
    width = interval[1] - interval[0]
    narrow, wide = wilson_interval(0.5, 72), wilson_interval(0.5, 9)
    assert narrow[1] - narrow[0] < width < wide[1] - wide[0]


def test_one_task_has_no_standard_error_and_none_has_no_rate() -> None:
    assert summarise([record("a")], planned=1).headline.standard_error is None
    empty = summarise([], planned=3)
    assert empty.headline.pass_rate is None
    assert empty.pass_at_k == {}
    assert not empty.complete


def test_pass_at_k_counts_errors_as_failures_and_needs_enough_attempts() -> None:
    records = [
        record("a", 0),
        record("a", 1, reward=0.0),
        record("a", 2, reward=None, status="errored"),
        record("b", 0),
    ]
    summary = summarise(records, planned=6)
    assert summary.pass_at_k == pytest.approx({1: (1 / 3 + 1) / 2, 2: 1 - 1 / 3, 3: 1.0})


def test_breakdowns_follow_category_and_difficulty() -> None:
    records = [
        record("a", category="games", difficulty="easy"),
        record("b", reward=0.0, category="games", difficulty="hard"),
        record("c", category="security"),
    ]
    tables = summarise(records, planned=3).breakdowns
    rates = {key: {v: s.pass_rate for v, s in table.items()} for key, table in tables.items()}
    assert rates == {
        "category": {"games": 0.5, "security": 1.0},
        "difficulty": {"easy": 1.0, "hard": 0.0},
    }


def test_usage_is_summed() -> None:
    summary = summarise([record("a"), record("b")], planned=2)
    assert summary.usage == {"completion_tokens": 20, "requests": 4}


def test_values_that_look_alike_keep_figures_of_their_own() -> None:
    passed = {"a_b_2": 0, "a b": 1, "a_b": 2, "A-B": 3, "\N{SNOWMAN}": 4, "_": 5, "": 6}
    summary = summarise(
        [
            record(f"{value}/{number}", reward=float(number < wanted), category=value)
            for value, wanted in passed.items()
            for number in range(7)
        ],
        planned=49,
    )
    flat = flat_metrics(summary)
    for begin in ("eval/pass_rate_category_", "eval/mean_reward_category_"):
        figures = {
            name.removeprefix(begin): round(rate * 7)
            for name, rate in flat.items()
            if name.startswith(begin)
        }
        assert figures == {"a_b_2": 0, "a_b": 2, "a_b_3": 3, "a_b_4": 1, "_": 5, "__2": 4, "": 6}
