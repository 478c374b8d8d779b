import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.groups import (
    ScoredSequence,
    choose_sequence,
    merge_items,
    split_group,
    to_group,
    wire_messages,
)
from hermes_rl.errors import ConfigError
from hermes_rl.types import TokenSequence


def sequence(sampled: int, prompt: int = 2) -> TokenSequence:
    ids = list(range(sampled))
    masked = [-100] * prompt + ids
    return TokenSequence([7] * prompt + ids, masked, [1.0] * prompt + [-0.1] * sampled)


def scored(score: float, *, logprobs: bool = True) -> ScoredSequence:
    return ScoredSequence(
        tokens=[1, 2],
        masks=[-100, 2],
        logprobs=[1.0, -0.3] if logprobs else None,
        score=score,
        messages=[{"role": "assistant", "tool_calls": []}],
    )


def test_the_longest_segment_by_sampled_tokens_is_sent_and_the_rest_counted() -> None:
    short, long = sequence(3, prompt=50), sequence(8)
    assert choose_sequence([short, long, sequence(1)], "longest") == (long, 4)


def test_the_last_segment_can_be_chosen() -> None:
    last = sequence(1)
    assert choose_sequence([sequence(8), last], "last") == (last, 8)


def test_a_forked_rollout_can_be_dropped_but_not_an_unforked_one() -> None:
    only = sequence(2)
    assert choose_sequence([sequence(2), sequence(3)], "drop") == (None, 5)
    assert choose_sequence([only], "drop") == (only, 0)


def test_every_message_on_the_wire_has_content() -> None:
    assert wire_messages([{"role": "assistant"}]) == [{"role": "assistant", "content": None}]


def test_a_group_has_one_entry_per_rollout_in_every_list() -> None:
    group = to_group([scored(1.0), scored(0.0)], generation_params={"temperature": 1.0})
    assert group["scores"] == [1.0, 0.0]
    for key in ("tokens", "masks", "inference_logprobs", "messages", "overrides"):
        assert len(group[key]) == 2


def test_logprobs_are_left_out_unless_every_rollout_has_them() -> None:
    assert "inference_logprobs" not in to_group([scored(1.0), scored(0.0, logprobs=False)])


def test_items_of_an_overridden_collect_trajectory_must_line_up() -> None:
    item = {"tokens": [1], "masks": [1], "scores": 1.0}
    with pytest.raises(ConfigError, match="Only 1 of 2 items"):
        merge_items([item, {**item, "advantages": [0.5]}])


def test_a_group_splits_into_trajectories() -> None:
    first, second = split_group(to_group([scored(1.0), scored(0.0)]))
    assert (first["scores"], second["scores"]) == ([1.0], [0.0])
    assert first["group_overrides"] == {}
