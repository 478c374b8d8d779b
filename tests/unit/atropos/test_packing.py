"""Long sequences wait packed; an environment that has a hook of its own gets lists."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import anyio.lowlevel
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.group_members import GroupMembers
from hermes_rl.atropos.groups import merge_items, to_item
from hermes_rl.atropos.packing import listed, packed
from hermes_rl.atropos.scoring import scored_sequence
from hermes_rl.model.sample import ExactTokens, Sample
from hermes_rl.packed import Packed
from hermes_rl.results import RolloutResult
from hermes_rl.types import AgentResult, JSONObject, Reward

LENGTH = 32_768
ITEM = {
    "tokens": [1, 2],
    "masks": [-100, 2],
    "inference_logprobs": [1.0, -0.5],
    "scores": 1.0,
    "messages": [],
}


class OwnHooks(HermesAgentBaseEnv):
    """Changes what it gets as if it were lists."""

    seen: list[Any]

    async def collect_trajectory(self, item: Any) -> tuple[JSONObject | None, list[Any]]:
        return {key: list(value) if key == "tokens" else value for key, value in ITEM.items()}, []

    async def postprocess_histories(self, trajectories: Any) -> Any:
        for key in ("tokens", "masks", "inference_logprobs"):
            for row in trajectories[key]:
                row.append(7)
        return trajectories

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        self.seen = scored_data["tokens"]


def references(root: object) -> int:
    """Return how many references a full garbage collection follows from ``root``."""
    seen: set[int] = set()
    waiting, count = [root], 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type) or not gc.is_tracked(each):
            continue
        seen.add(id(each))
        found = gc.get_referents(each)
        count += len(found)
        waiting += found
    return count


def finished_rollout() -> RolloutResult:
    exact = ExactTokens()
    half = LENGTH // 2
    sample = Sample(ids=range(half), logprobs=[-0.001 * n for n in range(half)], finish="stop")
    exact.add_turn(range(half), sample)
    sequence = exact.to_sequence({})
    node = {
        "tokens": sequence.tokens,
        "masked_tokens": sequence.masked_tokens,
        "logprobs": sequence.logprobs,
        "metadata": sequence.metadata,
    }
    agent = AgentResult(messages=[], managed_state={"nodes": [node]})
    return RolloutResult(task_id="t", attempt=0, status="finished", reward=Reward(1.0), agent=agent)


class LongRollouts:
    config = HermesAgentEnvConfig(group_size=8)

    async def collect_trajectory(self, item: Any) -> tuple[JSONObject | None, list[Any]]:
        sequence = await scored_sequence(finished_rollout(), policy="longest")
        assert sequence is not None
        return to_item(sequence), []

    def count(self, name: str, amount: int = 1) -> None: ...


async def test_a_group_of_8_times_32k_tokens_is_next_to_nothing_for_the_garbage_collector() -> None:
    items, _ = await GroupMembers(LongRollouts(), {}).collect()
    group = merge_items(items)
    assert [len(row) for row in group["inference_logprobs"]] == [LENGTH] * 8
    assert references(group) < 1000
    as_lists = await listed(group)
    assert references(as_lists) > 3 * 8 * LENGTH


async def test_packing_and_listing_give_back_the_same_group() -> None:
    group = merge_items([ITEM, ITEM])
    once = await packed(group)
    assert all(isinstance(row, Packed) for row in once["tokens"] + once["inference_logprobs"])
    assert once == group
    again = await listed(once)
    assert again == group
    assert all(type(row) is list for row in again["tokens"] + again["inference_logprobs"])


@pytest.mark.parametrize("odd", [[], None, ["a"], [None], [2**40]])
async def test_what_is_no_clean_sequence_of_numbers_stays_as_it_is(odd: Any) -> None:
    assert (await packed({"tokens": odd}))["tokens"] == odd
    assert (await packed({"tokens": [odd]}))["tokens"] == [odd]


async def test_an_environments_own_hooks_get_lists_and_what_they_return_is_packed() -> None:
    env = OwnHooks(HermesAgentEnvConfig(group_size=2, use_wandb=False))
    items, _ = await GroupMembers(env, {}).collect()
    assert isinstance(items[0]["tokens"], Packed)
    group = await env.postprocessed(merge_items(items))
    assert group["tokens"] == [[1, 2, 7], [1, 2, 7]]
    assert group["inference_logprobs"] == [[1.0, -0.5, 7.0]] * 2
    assert isinstance(group["masks"][0], Packed)
    await env.note_group(group)
    assert [type(row) for row in env.seen] == [list, list]


async def test_a_group_without_own_hooks_is_not_converted() -> None:
    env = HermesAgentBaseEnv(HermesAgentEnvConfig(use_wandb=False))
    group = await packed(merge_items([ITEM]))
    assert (await env.postprocessed(group))["tokens"][0] is group["tokens"][0]
    assert await env.postprocessed(None) is None


async def test_the_loop_gets_a_turn_for_each_sequence() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await packed(merge_items([ITEM] * 8))
        tasks.cancel_scope.cancel()
    assert turns >= 3 * 8
