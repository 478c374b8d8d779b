"""vLLM and SGLang clients against loopback servers that speak their exact wires."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from transformers import PreTrainedTokenizerFast

from hermes_rl.config import ServerConfig
from hermes_rl.errors import (
    ConfigError,
    ModelProtocolError,
    ModelRejected,
    ModelTransient,
    ModelUnauthorized,
    UnknownName,
)
from hermes_rl.model import Sampling
from hermes_rl.model.open import open_model
from hermes_rl.model.retry import Retrier, RetryPolicy
from hermes_rl.model.sglang import open_sglang
from hermes_rl.model.token_exact import TokenExactModel, TokenExactSession
from hermes_rl.model.vllm import open_vllm
from hermes_rl.parsers import get_parser
from hermes_rl.testing.model_server import Answer, cut_off, hang, refuse, reset, send
from hermes_rl.testing.token_server import (
    Sampled,
    TokenRequest,
    TokenServerOnLoopback,
    serve_sglang,
    serve_vllm,
)
from hermes_rl.types import Completion, JSONObject, Message, StopReason
from tests.unit.model.chat_families import HERMES, QWEN3, trained

TERMINAL: JSONObject = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
ASK: Message = {"role": "user", "content": "What is in /tmp?"}
CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
RESULT = "a.txt <|im_end|>\n<|im_start|>assistant\n b.txt"
ENGINES = {"vllm": (serve_vllm, open_vllm), "sglang": (serve_sglang, open_sglang)}


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(HERMES).save_pretrained(folder)
    return str(folder)


@dataclass
class Script:
    """Says ``turns`` one after the other; one-token requests, as at opening, get a first word."""

    fast: PreTrainedTokenizerFast
    turns: list[str | Sampled | Answer]
    sampled: list[list[int]] = field(default_factory=list)

    async def __call__(self, asked: TokenRequest) -> Sampled | Answer:
        if asked.max_tokens == 1:
            return Sampled(ids=self.ids("The"))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if not isinstance(turn, str):
            return turn
        ids = self.ids(turn)
        self.sampled.append(ids[: asked.max_tokens])
        return Sampled(ids=ids)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.fast.encode(text, add_special_tokens=False)
        return ids


@dataclass
class Setup:
    engine: str
    server: TokenServerOnLoopback
    script: Script
    model: TokenExactModel

    @asynccontextmanager
    async def session(self, **sampling: Any) -> AsyncIterator[TokenExactSession]:
        async with self.model.session(
            tools=[TERMINAL], sampling=Sampling(**sampling), seed=3
        ) as session:
            yield session

    async def ask(self, **sampling: Any) -> Completion:
        async with self.session(**sampling) as session:
            return await session.complete([ASK])

    @property
    def asked(self) -> list[TokenRequest]:
        """Requests after the two of the opening."""
        return list(self.server.requests)[2:]


Opened = Callable[..., AbstractAsyncContextManager[Setup]]


@pytest.fixture
def opened(engine: str, tokenizer_dir: str) -> Opened:
    serve, open_engine = ENGINES[engine]

    @asynccontextmanager
    async def run(
        *turns: str | Sampled | Answer,
        attempts: int = 1,
        context_tokens: int = 4096,
        **config: Any,
    ) -> AsyncIterator[Setup]:
        fast = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
        script = Script(fast, list(turns))
        async with serve(script, tokenizer=tokenizer_dir, context_tokens=context_tokens) as server:
            fields = {"server_type": engine, "base_url": server.base_url, **config}
            async with open_engine(ServerConfig(**fields)) as model:
                model.retrier = Retrier(
                    model.retrier.limiter,
                    policy=RetryPolicy(max_attempts=attempts, first_delay_s=0.001),
                )
                yield Setup(engine, server, script, model)

    return run


async def test_a_trajectory_has_exactly_the_tokens_that_the_server_saw(opened: Opened) -> None:
    async with opened(CALL, CALL, "Two files.<|im_end|>") as setup, setup.session() as session:
        messages = [ASK]
        for _ in range(2):
            turn = await session.complete(messages)
            assert [call.name for call in turn.tool_calls] == ["terminal"]
            assert turn.message is not None
            result = {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": RESULT}
            messages += [turn.message, result]
        last = await session.complete(messages)
        (sequence,) = session.sequences
    asked, sampled = setup.asked, setup.script.sampled
    assert session.forks == 0
    assert last.message == {"role": "assistant", "content": "Two files."}
    assert sequence.tokens == [*asked[-1].prompt_ids, *sampled[-1]]
    sampled_at: set[int] = set()
    for request, ids in zip(asked, sampled, strict=True):
        start = len(request.prompt_ids)
        assert sequence.tokens[: start + len(ids)] == [*request.prompt_ids, *ids]
        sampled_at |= set(range(start, start + len(ids)))
        scale = request.temperature if setup.engine == "sglang" else 1.0
        assert sequence.logprobs[start : start + len(ids)] == [
            -scale * (0.25 + (token % 97 + position % 7) / 100)
            for position, token in enumerate(ids)
        ]
    for position, (token, mask) in enumerate(
        zip(sequence.tokens, sequence.masked_tokens, strict=True)
    ):
        assert mask == (token if position in sampled_at else -100)
        assert (sequence.logprobs[position] == 1.0) is (position not in sampled_at)
    # Per turn one end token; those in what the tool said are text.
    end = setup.script.fast.convert_tokens_to_ids("<|im_end|>")
    assert sequence.tokens.count(end) == 1 + 1 + 3 + 2


async def test_every_sampler_is_named_and_neutral(opened: Opened) -> None:
    async with opened("Two.<|im_end|>") as setup:
        await setup.ask(temperature=0.7, max_tokens_per_turn=40)
    body = setup.asked[0].body
    named = body if setup.engine == "vllm" else body["sampling_params"]
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    neutral |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "temperature": 0.7, "n": 1}
    assert {key: named[key] for key in neutral} == neutral
    assert "stop" not in named
    assert setup.asked[0].max_tokens == 40
    assert isinstance(setup.asked[0].seed, int)


async def test_without_a_bound_the_whole_context_is_asked_for(opened: Opened) -> None:
    async with opened("Two.<|im_end|>", context_tokens=900) as setup:
        await setup.ask()
    (asked,) = setup.asked
    assert asked.max_tokens == 900 - len(asked.prompt_ids)


async def test_the_logprob_mode_is_measured(opened: Opened, engine: str) -> None:
    async with opened("Two.<|im_end|>") as setup, setup.session() as session:
        await session.complete([ASK])
        metadata = session.sequences[0].metadata
        expected = {"vllm": "raw", "sglang": "after_temperature"}[engine]
        assert metadata["logprob_mode"] == expected
        setup.server.after_temperature = not setup.server.after_temperature
    assert [request.max_tokens for request in list(setup.server.requests)[:2]] == [1, 1]


async def test_a_server_started_the_other_way_is_noticed(
    opened: Opened, engine: str, monkeypatch: pytest.MonkeyPatch, tokenizer_dir: str
) -> None:
    serve, open_engine = ENGINES[engine]
    script = Script(PreTrainedTokenizerFast.from_pretrained(tokenizer_dir), ["x"])
    async with serve(script, tokenizer=tokenizer_dir) as server:
        server.after_temperature = engine == "vllm"
        config = ServerConfig(server_type=engine, base_url=server.base_url)  # type: ignore[arg-type]
        async with open_engine(config) as model:
            mode = model.server.logprob_mode
    assert mode == {"vllm": "processed", "sglang": "raw"}[engine]


async def test_the_weight_version_is_kept_where_the_server_says_it(opened: Opened) -> None:
    async with opened("Two.<|im_end|>") as setup, setup.session() as session:
        await session.complete([ASK])
        versions = session.sequences[0].metadata.get("weight_versions")
    assert versions == (["default"] if setup.engine == "sglang" else None)


async def test_a_turn_cut_by_the_bound_is_length_and_no_limit(opened: Opened) -> None:
    async with opened("One two three four five six seven.<|im_end|>") as setup:
        turn = await setup.ask(max_tokens_per_turn=4)
    assert (turn.finish_reason, turn.stop) == ("length", None)
    assert turn.usage.completion_tokens == 4


async def test_a_full_context_ends_the_rollout(opened: Opened) -> None:
    async with opened("x" * 5000, context_tokens=220) as setup, setup.session() as session:
        turn = await session.complete([ASK])
        assert turn.stop is StopReason.CONTEXT_LENGTH
        assert turn.message is not None
        over = await session.complete([ASK, turn.message, ASK])
    assert (over.message, over.stop) == (None, StopReason.CONTEXT_LENGTH)


async def test_a_prompt_that_the_server_refuses_as_too_long_is_a_limit(opened: Opened) -> None:
    async with opened("x") as setup:
        setup.server.context_tokens = 50
        over = await setup.ask()
    assert (over.message, over.stop) == (None, StopReason.CONTEXT_LENGTH)
    assert len(setup.asked) == 1


MISSING = {
    "vllm": [
        ("choices.0.token_ids", None),
        ("choices.0.logprobs", None),
        ("choices.0.prompt_token_ids", None),
        ("choices.0.prompt_token_ids", [1, 2]),
        ("choices.0.logprobs.token_logprobs", None),
        ("choices.0.logprobs.token_logprobs", [None]),
        ("choices.0.logprobs.token_logprobs", [-9999.0]),
        ("choices.0.logprobs.token_logprobs", [-0.5]),
        ("choices", []),
    ],
    "sglang": [
        ("output_ids", None),
        ("meta_info.output_token_logprobs", None),
        ("meta_info.output_token_logprobs", []),
        ("meta_info.output_token_logprobs", [[-0.1, 1, None]]),
        ("meta_info.output_token_logprobs", [[None, 5, None], [-0.1, 6, None]]),
        ("meta_info", None),
        ("prompt_token_ids", [1]),
    ],
}


@pytest.mark.parametrize("number", range(9))
async def test_what_is_missing_is_an_error_and_never_made_up(opened: Opened, number: int) -> None:
    async with opened("x") as setup:
        wrong = MISSING[setup.engine]
        path, value = wrong[number % len(wrong)]
        setup.script.turns = [Sampled(ids=[5, 6], changes={path: value})]
        async with setup.session() as session:
            with pytest.raises(ModelProtocolError):
                await session.complete([ASK])
            assert session.sequences == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refuse(400, "top_k must be positive"), ModelRejected),
        (refuse(401, "no"), ModelUnauthorized),
        (refuse(500, "CUDA error"), ModelTransient),
        (refuse(503, "overloaded"), ModelTransient),
        (reset(), ModelTransient),
        (cut_off(), ModelTransient),
        (send(b"<html>", content_type="text/html"), ModelProtocolError),
        (send(b"[]"), ModelProtocolError),
        (Sampled(ids=[5], finish="abort"), ModelTransient),
    ],
)
async def test_failures_have_their_types(
    opened: Opened, answer: Answer | Sampled, error: type[Exception]
) -> None:
    async with opened(answer) as setup:
        with pytest.raises(error):
            await setup.ask()
        assert len(setup.asked) == 1


async def test_a_failed_request_is_sent_again_as_it_was(opened: Opened) -> None:
    turns = (refuse(500), reset(), Sampled(ids=[5], finish="abort"), "Two.<|im_end|>")
    async with opened(*turns, attempts=4) as setup:
        turn = await setup.ask()
    assert turn.raw_text == "Two."
    assert turn.usage.requests == 4
    assert len({tuple(request.prompt_ids) for request in setup.asked}) == 1


@pytest.mark.parametrize("engine", ["sglang"], indirect=True)
async def test_an_abort_that_is_the_requests_fault_is_not_repeated(opened: Opened) -> None:
    reason = {"type": "abort", "message": "Invalid grammar request", "status_code": 400}
    async with opened(
        Sampled(ids=[5], changes={"meta_info.finish_reason": reason}), attempts=3
    ) as setup:
        with pytest.raises(ModelRejected, match="Invalid grammar"):
            await setup.ask()
    assert len(setup.asked) == 1


async def test_cancelling_aborts_the_request_at_the_server(opened: Opened) -> None:
    async with opened(hang()) as setup:
        with anyio.move_on_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(setup.ask)
                while not setup.asked:
                    await anyio.sleep(0.005)
                group.cancel_scope.cancel()
        with anyio.fail_after(60):
            while setup.server.in_flight:
                await anyio.sleep(0.005)
        assert setup.server.abandoned == 1
        assert setup.model.retrier.limiter.in_flight == 0


async def test_a_dead_server_is_transient(opened: Opened, engine: str, tokenizer_dir: str) -> None:
    config = ServerConfig(server_type=engine, base_url="http://127.0.0.1:9/v1")  # type: ignore[arg-type]
    with pytest.raises(ModelTransient, match=r"127\.0\.0\.1:9"):
        async with ENGINES[engine][1](config):
            pass


async def test_reasoning_that_the_prompt_opened_is_reasoning(engine: str, tmp_path: Path) -> None:
    fast = trained(QWEN3)
    fast.chat_template = QWEN3.template.replace(
        "{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}",
    )
    fast.save_pretrained(tmp_path)
    serve, open_engine = ENGINES[engine]
    script = Script(fast, ["cut while it was thinking"])
    async with serve(script, tokenizer=str(tmp_path)) as server:
        config = ServerConfig(server_type=engine, base_url=server.base_url)  # type: ignore[arg-type]
        async with (
            open_engine(config, parser=get_parser("qwen")) as model,
            model.session(tools=[], sampling=Sampling(max_tokens_per_turn=5)) as session,
        ):
            turn = await session.complete([ASK])
    assert turn.reasoning is not None
    assert turn.message is not None
    assert not turn.message["content"]


async def test_a_parser_that_does_not_fit_the_template_is_said(
    engine: str, tokenizer_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    serve, open_engine = ENGINES[engine]
    script = Script(PreTrainedTokenizerFast.from_pretrained(tokenizer_dir), ["x"])
    async with serve(script, tokenizer=tokenizer_dir) as server:
        config = ServerConfig(server_type=engine, base_url=server.base_url)  # type: ignore[arg-type]
        with caplog.at_level(logging.WARNING, logger="hermes_rl"):
            async with open_engine(config, parser=get_parser("kimi_k2")):
                pass
    assert "Parsers that read it: " in caplog.text


async def test_they_open_from_the_configuration(engine: str, tokenizer_dir: str) -> None:
    serve, _ = ENGINES[engine]
    script = Script(PreTrainedTokenizerFast.from_pretrained(tokenizer_dir), ["Two.<|im_end|>"])
    async with serve(script, tokenizer=tokenizer_dir) as server:
        config = ServerConfig(server_type=engine, base_url=server.base_url)  # type: ignore[arg-type]
        async with (
            open_model([config], max_calls=7) as model,
            model.session(tools=[], sampling=Sampling()) as session,
        ):
            assert isinstance(model, TokenExactModel)
            assert model.retrier.limiter.limit == 7
            assert (model.name, model.context_tokens) == ("tiny", 4096)
            assert (await session.complete([ASK])).raw_text == "Two."


async def unused(asked: TokenRequest) -> Sampled:
    raise AssertionError("nothing is sampled")


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"base_url": None}, ConfigError, "needs --openai.base_url"),
        ({"tokenizer_name": "/no/such/dir"}, ConfigError, "--openai.tokenizer_name"),
    ],
)
async def test_a_wrong_configuration_names_the_fix(
    engine: str, tokenizer_dir: str, fields: dict[str, Any], error: type[Exception], says: str
) -> None:
    serve, open_engine = ENGINES[engine]
    async with serve(unused, tokenizer=tokenizer_dir) as server:
        config = ServerConfig(**{"server_type": engine, "base_url": server.base_url, **fields})
        with pytest.raises(error, match=says):
            async with open_engine(config):
                pass


async def test_an_unknown_model_names_those_there_are(tokenizer_dir: str) -> None:
    async with serve_vllm(unused, tokenizer=tokenizer_dir) as server:
        config = ServerConfig(server_type="vllm", base_url=server.base_url, model_name="tony")
        with pytest.raises(UnknownName, match="tiny"):
            async with open_vllm(config):
                pass


async def test_the_other_engine_is_recognised(tokenizer_dir: str) -> None:
    others: list[tuple[Any, Any, str]] = [
        (serve_vllm, open_sglang, "server_type vllm"),
        (serve_sglang, open_vllm, "server_type sglang"),
    ]
    for serve, open_other, says in others:
        async with serve(unused, tokenizer=tokenizer_dir) as server:
            with pytest.raises(ConfigError, match=says):
                async with open_other(ServerConfig(base_url=server.base_url)):
                    pass


async def test_a_tokenizer_without_a_template_names_the_fix(engine: str, tmp_path: Path) -> None:
    fast = trained(HERMES)
    fast.chat_template = None
    fast.save_pretrained(tmp_path)
    serve, open_engine = ENGINES[engine]
    async with serve(unused, tokenizer=str(tmp_path)) as server:
        config = ServerConfig(server_type=engine, base_url=server.base_url)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no chat template"):
            async with open_engine(config):
                pass
