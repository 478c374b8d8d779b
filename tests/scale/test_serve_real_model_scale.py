"""``serve`` with the real model at size: 20 groups of 8 for the trainer's one batch.

Smaller by HERMES_RL_SERVE_GROUPS, HERMES_RL_SERVE_GROUP_SIZE, HERMES_RL_SERVE_TURNS and
HERMES_RL_SERVE_TURN_TOKENS: the model computes on the CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from tests.integration.real_serve import (
    SLOTS,
    Group,
    Size,
    check_lengths,
    check_record,
    check_turns,
    llamacpp_server,
    sequences,
    serve_all,
    stretches,
)
from tests.integration.recording_proxy import recording_proxy
from tests.proof import Proof

PROOF = "serve-real-model"


def _of(name: str, default: int) -> int:
    return int(os.environ.get(f"HERMES_RL_SERVE_{name}", default))


SIZE = Size(
    groups=_of("GROUPS", 20),
    group_size=_of("GROUP_SIZE", 8),
    turns=_of("TURNS", 3),
    turn_tokens=_of("TURN_TOKENS", 48),
    limit_s=3300,
)


pytestmark = [pytest.mark.scale, pytest.mark.real_model, pytest.mark.timeout(3600)]


def report(groups: Sequence[Group], spent_s: float, proof: Proof) -> None:
    every = list(sequences(groups))
    sampled = sum(mask != -100 for _, masks, _ in every for mask in masks)
    turns = sum(len(stretches(masks)) for _, masks, _ in every)
    proof(
        f"{len(groups)} groups of {SIZE.group_size} in {spent_s:.0f} s: {turns} turns, "
        f"{sum(len(tokens) for tokens, _, _ in every)} tokens, {sampled} of them sampled, "
        f"none without its logprob"
    )


async def test_twenty_groups_of_eight_arrive_whole(tmp_path: Path, proof: Proof) -> None:
    local = ("--openai.server_type", "local", "--openai.slots", str(SLOTS))
    started_s = time.monotonic()
    groups = await serve_all(tmp_path, SIZE, *local)
    report(groups, time.monotonic() - started_s, proof)
    check_lengths(groups, SIZE)
    with llamacpp_server(SIZE) as url:
        check_turns(groups, url, SIZE)


async def test_they_are_what_the_server_itself_recorded(tmp_path: Path, proof: Proof) -> None:
    with llamacpp_server(SIZE) as url:
        async with recording_proxy(url) as proxy:
            there = ("--openai.server_type", "llamacpp", "--openai.base_url", proxy.url)
            started_s = time.monotonic()
            groups = await serve_all(tmp_path, SIZE, *there)
            report(groups, time.monotonic() - started_s, proof)
            check_record(groups, proxy.sampled)
        check_lengths(groups, SIZE)
        check_turns(groups, url, SIZE)
