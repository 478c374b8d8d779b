import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.groups import (
    ScoredSequence,
    choose_sequence,
    merge_items,
    split_group,
    to_item,
    wire_messages,
)
from hermes_rl.errors import ConfigError
from hermes_rl.types import JSONObject, TokenSequence


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


def group_of(*sequences: ScoredSequence) -> JSONObject:
    return merge_items([to_item(each) for each in sequences])


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
    group = group_of(scored(1.0), scored(0.0))
    assert group["scores"] == [1.0, 0.0]
    for key in ("tokens", "masks", "inference_logprobs", "messages", "overrides"):
        assert len(group[key]) == 2


def test_a_group_without_logprobs_has_no_list_of_them() -> None:
    without = scored(1.0, logprobs=False)
    assert "inference_logprobs" not in group_of(without, without)


def test_a_group_in_which_only_some_have_logprobs_is_refused() -> None:
    with pytest.raises(ConfigError, match="Only 1 of 2 items of a group have 'inference_logprobs'"):
        group_of(scored(1.0), scored(0.0, logprobs=False))


def test_items_of_an_overridden_collect_trajectory_must_line_up() -> None:
    item = {"tokens": [1], "masks": [1], "scores": 1.0}
    with pytest.raises(ConfigError, match="Only 1 of 2 items"):
        merge_items([item, {**item, "advantages": [0.5]}])


def test_a_group_splits_into_trajectories() -> None:
    first, second = split_group(group_of(scored(1.0), scored(0.0)))
    assert (first["scores"], second["scores"]) == ([1.0], [0.0])
    assert first["group_overrides"] == {}
