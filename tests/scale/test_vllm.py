"""Stock vLLM on the CPU: exact sequences, and ``serve`` with it as the policy. ``make test-vllm``.

The model is the tiny Llama of the exactness proof, served in float32; the independent opinion on
its log-probabilities is the same forward pass of ours.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ModelError
from hermes_rl.model import Sampling
from hermes_rl.model.vllm import VLLMServer, open_vllm
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.types import AgentResult, StopReason
from tests.conftest import require
from tests.integration.serve_process import serving_process
from tests.integration.trajectory_server import Trainer, trajectory_server
from tests.scale.tiny_vllm import CONTEXT_TOKENS, vllm_command, vllm_server, write_model
from tests.tiny_llama import END, TinyLlama, make_tiny_llama

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3000)]

ROLLOUTS = 16
TURNS = 4
TOOLS = ("read_file", "terminal", "write_file")
CANCELLED, LONG = 8, 3900
"""Calls that are cancelled, and the tokens each may make: more than a tiny model makes at once."""
SERVED_GROUPS, GROUP_SIZE = 20, 8
BOUND = 1e-3
"""Of |log-probability by vLLM - by our forward pass|; what is measured is printed."""
FAULT = 0.05
"""What each deliberate mistake exceeds somewhere."""
Group = dict[str, Any]


@pytest.fixture(scope="module")
def llama() -> TinyLlama:
    return make_tiny_llama()


@pytest.fixture(scope="module")
def url(llama: TinyLlama, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = vllm_command()
    require(command is not None, "needs vLLM: set VLLM to its command, see docs/trainers.md")
    assert command is not None
    folder = tmp_path_factory.mktemp("vllm")
    started_at = time.monotonic()
    with vllm_server(command, write_model(llama, folder / "tiny"), folder / "log") as address:
        version = httpx.get(f"{address.removesuffix('/v1')}/version", timeout=30).json()["version"]
        print(
            f"\n{platform.platform()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, "
            f"vLLM {version}, transformers {importlib.metadata.version('transformers')}, "
            f"commit {commit()}; vLLM started in {time.monotonic() - started_at:.0f} s"
        )
        yield address


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


async def played(url: str, temperature: float) -> list[AgentResult]:
    env = EnvConfig(
        terminal_backend="local",
        enabled_toolsets=["terminal", "file"],
        agent_temperature=temperature,
        max_agent_turns=TURNS,
        max_tokens_per_turn=24,
        rollout_retries=0,
    )
    results: dict[int, AgentResult] = {}
    config = ServerConfig(server_type="vllm", base_url=url)
    async with RolloutEngine(env, [config]) as engine, anyio.create_task_group() as group:

        async def one(number: int) -> None:
            task = FakeTask(id=f"t{number}", prompt=f"Task {number}: count the lines.")
            result = await engine.start(task, seed=number, tool_names=TOOLS).result()
            assert result.status == "finished", result.failure
            assert result.agent is not None
            results[number] = result.agent

        for number in range(ROLLOUTS):
            group.start_soon(one, number)
    return [results[number] for number in sorted(results)]


Told = tuple[list[int], list[int], list[float]]


def nodes(agents: Sequence[AgentResult]) -> list[Told]:
    return [
        (node["tokens"], node["masked_tokens"], node["logprobs"])
        for agent in agents
        for node in (agent.managed_state or {})["nodes"]
    ]


def differences(llama: TinyLlama, told: Told) -> np.ndarray:
    """Return |recorded - recomputed| of every id that is said to be sampled."""
    tokens, masks, logprobs = told
    rows = llama.logprobs(tokens)
    where = [position for position, mask in enumerate(masks) if mask != -100]
    right = np.array([rows[position - 1, tokens[position]] for position in where])
    return np.abs(right - np.array([logprobs[position] for position in where]))


def spliced(told: Told, place: int, drop: int, ids: Sequence[int]) -> Told:
    """Put masked ``ids`` in the place of ``drop`` positions."""
    tokens, masks, logprobs = told
    rest = place + drop
    return (
        [*tokens[:place], *ids, *tokens[rest:]],
        [*masks[:place], *[-100] * len(ids), *masks[rest:]],
        [*logprobs[:place], *[1.0] * len(ids), *logprobs[rest:]],
    )


def mistakes(llama: TinyLlama, told: Told) -> dict[str, Told]:
    """Return ``told`` with the mistakes that other clients have been seen to make."""
    tokens, masks, logprobs = told
    ends = [n for n in range(1, len(masks)) if masks[n - 1] != -100 and masks[n] == -100]
    first = ends[0]
    shifted = [logprobs[n - 1] if masks[n - 1] != -100 else logprobs[n] for n in range(len(masks))]
    return {
        "doubled end": spliced(told, first, 0, [llama.id_of(END)]),
        "dropped newline": spliced(told, first, 1, []),
        "shifted by one": (tokens, masks, shifted),
    }


async def test_sequences_are_what_vllm_saw_and_sampled(url: str, llama: TinyLlama) -> None:
    agents = await played(url, temperature=1.0)
    told = nodes(agents)
    assert sum(agent.counters.get("forks", 0) for agent in agents) == 0
    assert len(told) == ROLLOUTS
    for tokens, masks, logprobs in told:
        assert len(tokens) == len(masks) == len(logprobs)
        assert all(mask in (-100, token) for token, mask in zip(tokens, masks, strict=True))
        assert [mask == -100 for mask in masks] == [value == 1.0 for value in logprobs]
    calls = sum(len(m.get("tool_calls") or ()) for agent in agents for m in agent.messages)
    assert calls >= ROLLOUTS / 2
    found = np.concatenate([differences(llama, one) for one in told])
    modes = {node["metadata"]["logprob_mode"] for a in agents for node in a.managed_state["nodes"]}
    print(
        f"{len(told)} conversations, {calls} calls, {sum(a.turns_used for a in agents)} turns, "
        f"{len(found)} sampled tokens; log-probability mode {modes}; "
        f"|vLLM - ours| max {found.max():.2e}, mean {found.mean():.2e}"
    )
    assert modes == {"raw"}
    assert found.max() <= BOUND
    whole = [one for one in told if sum(mask != -100 for mask in one[1]) > 12]
    several = [one for one in whole if len(mistakes_ends(one)) > 1]
    assert several
    for name in ("doubled end", "dropped newline", "shifted by one"):
        worst = [differences(llama, mistakes(llama, one)[name]).max() for one in several]
        print(f"{name}: largest difference at least {min(worst):.2e}, at most {max(worst):.2e}")
        assert max(worst) > FAULT


def mistakes_ends(told: Told) -> list[int]:
    masks = told[1]
    return [n for n in range(1, len(masks)) if masks[n - 1] == -100 and masks[n] != -100]


async def test_limits_and_cancelling_at_the_real_server(url: str) -> None:
    config = ServerConfig(server_type="vllm", base_url=url)
    async with open_vllm(config) as model:
        assert isinstance(model.server, VLLMServer)
        assert model.context_tokens == CONTEXT_TOKENS
        long = [{"role": "user", "content": "line " * CONTEXT_TOKENS}]
        async with model.session(tools=[], sampling=Sampling(), seed=1) as session:
            over = await session.complete(long)
        assert (over.message, over.stop) == (None, StopReason.CONTEXT_LENGTH)
        with pytest.raises(ModelError, match="maximum context length"):
            await model.server.generate(
                [1] * (CONTEXT_TOKENS + 1),
                max_tokens=5,
                temperature=1.0,
                top_p=None,
                seed=None,
                timeout_s=60,
            )
        before = await metric(url, "vllm:generation_tokens_total")
        async with anyio.create_task_group() as calls:
            for seed in range(CANCELLED):
                calls.start_soon(one_long_call, model.server, seed)
            with anyio.fail_after(300):
                while await metric(url, "vllm:generation_tokens_total") == before:
                    await anyio.sleep(0.05)
            calls.cancel_scope.cancel()
        with anyio.fail_after(300):
            # The gauge is written at a step, and without a request there is none.
            while await metric(url, "vllm:num_requests_running"):
                await short_call(model.server)
        made = await metric(url, "vllm:generation_tokens_total") - before
    print(
        f"{CANCELLED} calls of up to {LONG} tokens, cancelled: vLLM stopped after {made:g} tokens"
    )
    assert made < CANCELLED * LONG / 2


async def one_long_call(server: VLLMServer, seed: int) -> None:
    await server.generate(
        [5] * 20, max_tokens=LONG, temperature=1.0, top_p=None, seed=seed, timeout_s=300
    )


async def short_call(server: VLLMServer) -> None:
    await server.generate(
        [5] * 20, max_tokens=1, temperature=1.0, top_p=None, seed=1, timeout_s=300
    )


async def metric(url: str, name: str) -> float:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url.removesuffix('/v1')}/metrics", timeout=30)).text
    lines = [line for line in text.splitlines() if line.startswith(name)]
    assert lines, f"vLLM has no metric {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def test_serve_trains_on_vllm(url: str, llama: TinyLlama, tmp_path: Path) -> None:
    words = (
        *("terminal-test", "--env.group_size", str(GROUP_SIZE), "--env.total_steps", "1"),
        *("--env.max_agent_turns", "3", "--env.max_token_length", "4000"),
        *("--env.max_tokens_per_turn", "32", "--env.max_batches_offpolicy", "1"),
        *("--env.ensure_scores_are_not_same", "false", "--env.enabled_toolsets", '["terminal"]'),
        *("--openai.server_type", "vllm", "--openai.base_url", url),
    )
    started_at = time.monotonic()
    async with trajectory_server(tmp_path) as server:
        size = SERVED_GROUPS * GROUP_SIZE
        trainer = Trainer(server.url, batch_size=size, max_token_len=CONTEXT_TOKENS)
        await trainer.register(num_steps=1)
        there = ("--env.rollout_server_url", server.url)
        async with serving_process(tmp_path, *words, *there) as serve:
            with anyio.move_on_after(1200):
                while not trainer.batches and serve.is_running:
                    await trainer.pull()
                    await anyio.sleep(0.2)
            assert trainer.batches, serve.output[-4000:]
            assert await serve.end(120) == 0, serve.output[-4000:]
        await trainer.aclose()
    took_s = time.monotonic() - started_at
    assert (serve.counter("sent"), serve.counter("possible duplicates")) == (SERVED_GROUPS, 0)
    groups: list[Group] = trainer.batches[0]
    assert [len(group["tokens"]) for group in groups] == [GROUP_SIZE] * SERVED_GROUPS
    told: list[Told] = [
        one
        for group in groups
        for one in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True)
    ]
    for tokens, masks, logprobs in told:
        assert len(tokens) == len(masks) == len(logprobs) <= 4000
        assert [mask == -100 for mask in masks] == [value == 1.0 for value in logprobs]
    found = np.concatenate([differences(llama, one) for one in told])
    turns = sum(len(mistakes_ends(one)) for one in told)
    print(
        f"serve: {SERVED_GROUPS} groups of {GROUP_SIZE} in {took_s:.0f} s, all arrived; {turns} "
        f"turns, {len(found)} sampled tokens; |vLLM - ours| max {found.max():.2e}"
    )
    assert turns > size
    assert found.max() <= BOUND
