"""Atropos' own servers behind the adapter: real classes of atroposlib, real HTTP on loopback."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from atroposlib.envs.server_handling.managed_server import DummyManagedServer, ManagedServer
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_manager import APIServerConfig
from atroposlib.envs.server_handling.sglang_server import SGLangServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hermes_rl.agent import HermesAgentLoop
from hermes_rl.errors import ConfigError, ModelProtocolError
from hermes_rl.model import ModelSession, Sampling
from hermes_rl.model.adapter import ChatCompletionModel
from hermes_rl.testing.model_server import always, say, serve_model
from hermes_rl.types import JSONObject, Message, StopReason

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
TOOL: JSONObject = {
    "type": "function",
    "function": {"name": "terminal", "description": "Run.", "parameters": {"type": "object"}},
}
ASK: list[Message] = [{"role": "user", "content": "count the files"}]


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer with a ChatML template, trained here."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    fast.chat_template = TEMPLATE
    path = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(path)
    return path


class Engine:
    """Speaks SGLang's ``/generate`` and keeps what it sampled."""

    def __init__(self, tokenizer: Any) -> None:
        self.url = ""
        self.asked: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.logprobs: list[list[float]] = []
        self.has_logprobs = True
        self._tokenizer = tokenizer
        self._words = itertools.cycle(["there are two", "three, I think", "no more"])

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = self._tokenizer.encode(next(self._words), add_special_tokens=False)
        logprobs = [-0.25 * (n + 1) for n in range(len(ids))]
        self.asked.append(body["input_ids"])
        self.sampled.append(ids)
        self.logprobs.append(logprobs)
        # 1.0 is what ManagedServer puts where a server left one out.
        given = logprobs if self.has_logprobs else [1.0] * len(ids)
        entries = [[logprob, token, None] for logprob, token in zip(given, ids, strict=True)]
        meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": entries}
        return web.json_response({"text": "", "output_ids": ids, "meta_info": meta})


@pytest_asyncio.fixture
async def engine(tokenizer_path: Path) -> AsyncIterator[Engine]:
    engine = Engine(PreTrainedTokenizerFast.from_pretrained(tokenizer_path))
    app = web.Application()
    app.router.add_post("/generate", engine.generate)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield engine
    await runner.cleanup()


@asynccontextmanager
async def managed(engine: Engine, path: Path, **options: Any) -> AsyncIterator[ManagedServer]:
    config = APIServerConfig(
        base_url=f"{engine.url}/v1", model_name=str(path), api_key="x", health_check=False
    )
    server = SGLangServer(config)
    try:
        yield ManagedServer(server, tokenizer=server.tokenizer, **options)
    finally:
        await server.openai.close()


@asynccontextmanager
async def conversation(engine: Engine, path: Path) -> AsyncIterator[ModelSession]:
    async with (
        managed(engine, path) as server,
        ChatCompletionModel(server).session(tools=(), sampling=Sampling()) as session,
    ):
        yield session


def sampled_of(masks: Sequence[int]) -> list[list[int]]:
    """Return each stretch of tokens that are not masked."""
    groups = itertools.groupby(masks, key=lambda mask: mask == -100)
    return [list(found) for is_masked, found in groups if not is_masked]


async def converse(session: Any, turns: int) -> list[Message]:
    messages = list(ASK)
    for _ in range(turns):
        completion = await session.complete(messages)
        messages += [completion.message, {"role": "user", "content": "are you sure?"}]
    return messages


async def test_the_sequence_is_what_the_engine_was_asked_and_sampled(
    engine: Engine, tokenizer_path: Path
) -> None:
    async with conversation(engine, tokenizer_path) as session:
        await converse(session, 3)
        (sequence,) = session.sequences
    assert sequence.tokens == engine.asked[-1] + engine.sampled[-1]
    assert sampled_of(sequence.masked_tokens) == engine.sampled
    found = [value for value in sequence.logprobs if value != 1.0]
    assert found == list(itertools.chain.from_iterable(engine.logprobs))
    assert sequence.metadata == {"finish_reason": "stop", "forks": 0}


@pytest.mark.parametrize("track_tree", [False, True])
async def test_each_conversation_has_its_own_sequences(
    engine: Engine, tokenizer_path: Path, track_tree: bool
) -> None:
    async with managed(engine, tokenizer_path, track_tree=track_tree) as server:
        model = ChatCompletionModel(server)
        for count in (1, 2):
            async with model.session(tools=(), sampling=Sampling()) as session:
                assert list(session.sequences) == []
                await converse(session, 1)
                (sequence,) = session.sequences
            assert len(engine.sampled) == count
            assert sampled_of(sequence.masked_tokens) == [engine.sampled[-1]]


async def test_a_conversation_that_cannot_be_extended_is_a_counted_fork(
    engine: Engine, tokenizer_path: Path
) -> None:
    async with conversation(engine, tokenizer_path) as session:
        await converse(session, 1)
        await session.complete([{"role": "user", "content": "something else"}])
        first, second = session.sequences
    assert [sampled_of(s.masked_tokens) for s in (first, second)] == [[s] for s in engine.sampled]
    assert second.metadata["forks"] == 1


async def test_the_agent_loop_hands_the_tracked_tokens_to_trainers(
    engine: Engine, tokenizer_path: Path
) -> None:
    async with managed(engine, tokenizer_path) as server:
        result = await HermesAgentLoop(server, [], []).run(list(ASK))
    assert result.stop_reason is StopReason.FINISHED
    assert result.managed_state is not None
    (node,) = result.managed_state["nodes"]
    assert node["tokens"] == engine.asked[0] + engine.sampled[0]


async def test_logprobs_that_were_left_out_are_an_error_not_ones(
    engine: Engine, tokenizer_path: Path
) -> None:
    engine.has_logprobs = False
    async with conversation(engine, tokenizer_path) as session:
        await converse(session, 1)
        with pytest.raises(ModelProtocolError, match="no log-probability for"):
            _ = session.sequences


async def test_tools_that_it_does_not_show_are_an_error(
    engine: Engine, tokenizer_path: Path
) -> None:
    async with managed(engine, tokenizer_path) as server:
        model = ChatCompletionModel(server)
        async with model.session(tools=[TOOL], sampling=Sampling()) as session:
            with pytest.raises(ConfigError, match="does not show the tools"):
                await session.complete(ASK)
        shown: list[Message] = [{"role": "system", "content": "You have: terminal."}, *ASK]
        async with model.session(tools=[TOOL], sampling=Sampling()) as session:
            assert (await session.complete(shown)).message is not None


@asynccontextmanager
async def openai_server() -> AsyncIterator[OpenAIServer]:
    async with serve_model(always(say("two files"))) as running:
        config = APIServerConfig(
            base_url=running.base_url, model_name="m", api_key="x", health_check=False
        )
        server = OpenAIServer(config)
        try:
            yield server
        finally:
            await server.openai.close()


async def test_a_server_of_atropos_plays_without_tokens() -> None:
    async with openai_server() as server:
        result = await HermesAgentLoop(server, [], []).run(list(ASK))
    assert result.messages[-1] == {"role": "assistant", "content": "two files"}
    assert result.managed_state is None


async def test_invented_tokens_are_never_presented_as_the_models() -> None:
    async with openai_server() as server:
        result = await HermesAgentLoop(DummyManagedServer(server), [], []).run(list(ASK))
    assert result.stop_reason is StopReason.FINISHED
    assert result.managed_state is None


class OwnServer:
    """A server of a user's own, with a state of another shape."""

    async def chat_completion(self, **kwargs: Any) -> Mapping[str, Any]:
        return {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}

    def get_state(self) -> Mapping[str, Any]:
        return {"turns": 1}


async def test_a_state_that_holds_no_sequences_is_none() -> None:
    result = await HermesAgentLoop(OwnServer(), [], []).run(list(ASK))
    assert result.managed_state is None
