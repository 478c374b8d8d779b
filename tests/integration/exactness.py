"""What is played, recorded and compared in the proof that token sequences are exact.

Three accounts of the same conversations are held against each other: the sequences that our engine
hands to trainers, what went over the wire between our client and llama.cpp's server (recorded by a
proxy), and a forward pass of ours (:mod:`tests.tiny_llama`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import aiohttp
import anyio
import numpy as np
import orjson
from aiohttp import web

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.llamacpp import connect, renderer_of
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.types import AgentResult, JSONObject, Message
from tests.tiny_llama import END, TinyLlama

ROOT = Path(__file__).parents[2]
CONTEXT_TOKENS = 2048
SLOTS = 3
TURNS = 4
MASKED, NOT_SAMPLED = -100, 1.0
TOOLS = ("read_file", "terminal", "write_file")


@contextmanager
def served(model: Path, *, float32: bool) -> Iterator[str]:
    """Run llama.cpp's server on ``model``; its address."""
    module = "tests.integration.float32_server" if float32 else "hermes_rl.model.local_server"
    options = {
        "path": str(model),
        "cache_dir": str(model.parent),
        "context_tokens": CONTEXT_TOKENS,
        "slots": SLOTS,
        "threads": 1,
    }
    command = [sys.executable, "-m", module, orjson.dumps(options).decode()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield orjson.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@dataclass(frozen=True)
class Exchange:
    """One completion as it went over the wire."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    asked: JSONObject
    had_all_logprobs: bool


@asynccontextmanager
async def recorded(upstream: str) -> AsyncIterator[tuple[str, list[Exchange]]]:
    """Stand before a server: the address, and the completions so far."""
    exchanges: list[Exchange] = []
    async with aiohttp.ClientSession() as session:

        async def handle(request: web.Request) -> web.Response:
            asked = await request.read()
            url = upstream + request.path
            async with session.request(request.method, url, data=asked) as answer:
                body = await answer.read()
            if request.path == "/completion":
                sent, said = orjson.loads(asked), orjson.loads(body)
                if "tokens" in said:
                    tokens, entries = said["tokens"], said["completion_probabilities"]
                    exchanges.append(
                        Exchange(
                            tuple(sent["prompt"]), tuple(tokens), sent, len(entries) == len(tokens)
                        )
                    )
            return web.Response(body=body, status=answer.status, content_type="application/json")

        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", exchanges
        finally:
            await runner.cleanup()


@dataclass(frozen=True)
class Trajectory:
    """What a trainer gets of one rollout, and what is true beside it.

    Attributes:
        without_tools: The opening prompt as it would be without the tools' schemas.
        retokenised: By turn, the ids of its text.
    """

    tokens: list[int]
    masks: list[int]
    logprobs: list[float]
    metadata: JSONObject
    agent: AgentResult
    texts: list[str]
    text: str
    without_tools: list[int]
    retokenised: list[list[int]]

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The (start, end) of each run of sampled ids."""
        edges = np.flatnonzero(np.diff([0, *(mask != MASKED for mask in self.masks), 0]))
        return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


@dataclass
class Play:
    """Rollouts on one server."""

    llama: TinyLlama
    temperature: float
    trajectories: list[Trajectory] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


async def play(
    llama: TinyLlama, url: str, *, rollouts: int, temperature: float, tools: Sequence[str] = TOOLS
) -> Play:
    """Let our engine play conversations with tools in real sandboxes, ``SLOTS`` at a time."""
    played = Play(llama, temperature)
    env = EnvConfig(
        terminal_backend="local",
        enabled_toolsets=["terminal", "file"],
        agent_temperature=temperature,
        max_agent_turns=TURNS,
        max_tokens_per_turn=20,
        rollout_retries=0,
    )
    async with recorded(url) as (address, played.exchanges):
        config = ServerConfig(server_type="llamacpp", base_url=address)
        agents: dict[int, AgentResult] = {}
        async with RolloutEngine(env, [config]) as engine, anyio.create_task_group() as group:

            async def one(number: int) -> None:
                task = FakeTask(id=f"t{number}", prompt=f"Task {number}: count the lines.")
                handle = engine.start(task, seed=number, tool_names=tools)
                result = await handle.result()
                assert result.status == "finished", result.failure
                assert result.agent is not None
                agents[number] = result.agent

            for number in range(rollouts):
                group.start_soon(one, number)
        async with connect(config, environ={}) as server:
            for number in sorted(agents):
                played.trajectories += await _trajectories(agents[number], server)
    return played


async def _trajectories(agent: AgentResult, server: object) -> list[Trajectory]:
    renderer = await renderer_of(server)
    assert agent.managed_state is not None
    (node,) = agent.managed_state["nodes"]
    opening: list[Message] = agent.messages[:1]
    made = Trajectory(
        node["tokens"],
        node["masked_tokens"],
        node["logprobs"],
        node["metadata"],
        agent,
        [],
        await server.detokenize(node["tokens"]),
        await renderer.start(opening, []),
        [],
    )
    for start, end in made.stretches:
        made.texts.append(await server.detokenize(made.tokens[start:end]))
        made.retokenised.append(await server.tokenize(made.texts[-1], control=True))
    return [made]


def schemas(names: Sequence[str] = TOOLS) -> list[JSONObject]:
    """Return the tools as the model is shown them."""
    return [NATIVE_TOOLS[name].schema for name in names]


@dataclass(frozen=True)
class Account:
    """A sequence as some trainer might be told: the right one, or one with a known mistake."""

    tokens: list[int]
    masks: list[int]
    logprobs: list[float]


def account(sequence: Trajectory) -> Account:
    return Account(list(sequence.tokens), list(sequence.masks), list(sequence.logprobs))


def wire_faults(told: Account, exchanges: Sequence[Exchange]) -> list[str]:
    """Say where ``told`` is not what was sent to the server and sampled by it."""
    sampled: set[int] = set()
    faults = []
    tokens = tuple(told.tokens)
    for number, exchange in enumerate(exchanges):
        start = len(exchange.prompt)
        if tokens[:start] != exchange.prompt:
            faults.append(f"completion {number} had another prompt")
            continue
        kept = _common(exchange.sampled, tokens[start:])
        if not kept:
            faults.append(f"nothing of completion {number} is there")
        sampled |= set(range(start, start + kept))
        if start < len(told.masks) and told.masks[start] == MASKED:
            faults.append(f"position {start} was sampled and is masked")
    for position, (token, mask) in enumerate(zip(told.tokens, told.masks, strict=True)):
        if mask != MASKED and position not in sampled:
            faults.append(f"position {position} was not sampled and is not masked")
        if mask not in (MASKED, token):
            faults.append(f"position {position} has another token's mask")
    return faults


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def masking_faults(told: Account, exchanges: Sequence[Exchange]) -> list[str]:
    """The same where each turn is one whole completion: every sampled id counts."""
    sampled = {
        position
        for exchange in exchanges
        for position in range(len(exchange.prompt), len(exchange.prompt) + len(exchange.sampled))
    }
    return [
        f"position {position}: {'sampled' if position in sampled else 'not sampled'}"
        for position, mask in enumerate(told.masks)
        if (mask == MASKED) == (position in sampled)
    ]


def differences(llama: TinyLlama, told: Account, *, temperature: float = 1.0) -> np.ndarray:
    """Return |recorded - recomputed| of every id that is said to be sampled."""
    where = [position for position, mask in enumerate(told.masks) if mask != MASKED]
    rows = llama.logprobs(told.tokens, temperature=temperature)
    right = [rows[position - 1, told.tokens[position]] for position in where]
    return np.abs(np.array(right) - [told.logprobs[position] for position in where])


def own_exchanges(sequence: Trajectory, exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return the completions of one rollout: those that begin with its opening."""
    opening = tuple(sequence.tokens[: sequence.stretches[0][0]])
    return [exchange for exchange in exchanges if exchange.prompt[: len(opening)] == opening]


Mistake = Callable[[Trajectory, TinyLlama], Account]


def _spliced(sequence: Trajectory, start: int, end: int, ids: Sequence[int]) -> Account:
    """Put masked ``ids`` in the place of positions ``start`` to ``end``."""
    told = account(sequence)
    told.tokens[start:end] = ids
    told.masks[start:end] = [MASKED] * len(ids)
    told.logprobs[start:end] = [NOT_SAMPLED] * len(ids)
    return told


def doubled_end(sequence: Trajectory, llama: TinyLlama) -> Account:
    _, end = sequence.stretches[0]
    return _spliced(sequence, end, end, [llama.id_of(END)])


def dropped_newline(sequence: Trajectory, llama: TinyLlama) -> Account:
    _, end = sequence.stretches[0]
    return _spliced(sequence, end, end + 1, [])


def dropped_end(sequence: Trajectory, llama: TinyLlama) -> Account:
    _, end = sequence.stretches[0]
    return _spliced(sequence, end - 1, end, [])


def shifted(sequence: Trajectory, llama: TinyLlama) -> Account:
    """Every log-probability is that of the id after."""
    told = account(sequence)
    for start, end in sequence.stretches:
        told.logprobs[start:end] = [*told.logprobs[start + 1 : end], told.logprobs[start]]
    return told


def retokenised(sequence: Trajectory, llama: TinyLlama) -> Account:
    """The first turn's ids are made of its text."""
    start, end = sequence.stretches[0]
    return _spliced(sequence, start, end, sequence.retokenised[0])


def tools_missing(sequence: Trajectory, llama: TinyLlama) -> Account:
    start, _ = sequence.stretches[0]
    return _spliced(sequence, 0, start, sequence.without_tools)


def dropped_token(sequence: Trajectory, llama: TinyLlama) -> Account:
    start, _ = sequence.stretches[0]
    return _spliced(sequence, start, start + 1, [])


def doubled_bos(sequence: Trajectory, llama: TinyLlama) -> Account:
    return _spliced(sequence, 0, 0, sequence.tokens[:1])


def prompt_unmasked(sequence: Trajectory, llama: TinyLlama) -> Account:
    start, _ = sequence.stretches[0]
    told = account(sequence)
    told.masks[start - 1] = told.tokens[start - 1]
    return told


def sample_masked(sequence: Trajectory, llama: TinyLlama) -> Account:
    told = account(sequence)
    _, end = sequence.stretches[-1]
    told.masks[end - 1], told.logprobs[end - 1] = MASKED, NOT_SAMPLED
    return told


def mean_and_max(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the mean and the largest of all values."""
    return fmean(np.concatenate(values)), float(max(part.max() for part in values))
