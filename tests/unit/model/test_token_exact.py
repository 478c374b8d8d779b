"""Token-exact sessions against a server made here: ids are code points, control tokens above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ModelError, ModelProtocolError, ModelTransient
from hermes_rl.model import Sampling
from hermes_rl.model.failures import PromptTooLong
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.retry import Retrier, RetryPolicy
from hermes_rl.model.sample import ExactTokens, Finish, Sample
from hermes_rl.model.token_exact import PIECE_TOKENS, TokenExactModel, TokenExactSession
from hermes_rl.parsers import get_parser
from hermes_rl.types import Completion, JSONObject, Message, StopReason

BOS, START, END = 0x110000, 0x110001, 0x110002
CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'
USER: Message = {"role": "user", "content": "list"}


def ids_of(text: str) -> list[int]:
    return [ord(char) for char in text]


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(token_id) for token_id in ids if token_id < BOS)


class ChatML:
    """A template with an end-of-turn token and a newline after it."""

    cuts_turns = False
    can_extend = True

    async def start(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[int]:
        return [BOS, *ids_of(f"{len(tools)}"), *self._shown(messages)]

    async def extend(
        self, turn: Sequence[int], new_messages: Sequence[Message]
    ) -> list[int] | None:
        if not self.can_extend:
            return None
        end = [] if turn and turn[-1] == END else [END]
        return [*end, *ids_of("\n"), *self._shown(new_messages)]

    async def turn_end(self, turn: Sequence[int], *, searched: int = 0) -> int | None:
        raise AssertionError("turns end by token here")

    async def read(self, turn: Sequence[int]) -> str:
        return text_of(turn)

    def _shown(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [START, *ids_of(f"{message['role']}:{message['content']}"), END, 10]
        return [*ids, START, *ids_of("assistant:")]


class Transcript(ChatML):
    """A template without an end-of-turn token: turns end at a text."""

    cuts_turns = True

    async def extend(self, turn: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        return [10, *self._shown(new_messages)]

    async def turn_end(self, turn: Sequence[int], *, searched: int = 0) -> int | None:
        found = text_of(turn).find("</tool_call>", max(0, searched - 12))
        return None if found < 0 else found + len("</tool_call>")


@dataclass(slots=True, frozen=True)
class Asked:
    prompt: list[int]
    max_tokens: int | None
    temperature: float
    top_p: float | None
    seed: int | None


@dataclass
class Server:
    """Says what it was given to say, wherever in it the prompt has arrived."""

    turns: list[list[int] | ModelError]
    context_tokens: int | None = None
    name: str = "toy"
    logprob_mode: str = "raw"
    echo: Callable[[list[int]], list[int] | None] = lambda prompt: None
    change: Callable[[Sample], Sample] = lambda sample: sample
    asked: list[Asked] = field(default_factory=list)
    _rest: list[int] = field(default_factory=list)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None,
        temperature: float,
        top_p: float | None,
        seed: int | None,
        timeout_s: float,
    ) -> Sample:
        assert timeout_s > 0
        self.asked.append(Asked(list(prompt_ids), max_tokens, temperature, top_p, seed))
        if not self._rest:
            turn = self.turns.pop(0)
            if isinstance(turn, ModelError):
                raise turn
            self._rest = turn
        ids = self._rest[:max_tokens]
        self._rest = self._rest[len(ids) :]
        finish: Finish = "length" if self._rest else "stop"
        if finish == "length" and max_tokens is not None and max_tokens > PIECE_TOKENS:
            self._rest = []
        logprobs = [-0.5 - position / 100 for position in range(len(ids))]
        sample = Sample(
            ids=ids,
            logprobs=logprobs,
            finish=finish,
            prompt_ids=self.echo(list(prompt_ids)),
            weight_version="v1",
        )
        return self.change(sample)


class Rollout:
    """A session with its conversation."""

    def __init__(self, server: Server, session: TokenExactSession) -> None:
        self.server = server
        self.session = session
        self.messages: list[Message] = [USER]

    async def turn(self, *then: Message) -> Completion:
        completion = await self.session.complete(self.messages)
        if completion.message is not None:
            self.messages += [completion.message, *then]
        return completion


async def no_sleep(delay_s: float) -> None:
    return None


def model_of(server: Server, renderer: ChatML, *, attempts: int = 1) -> TokenExactModel:
    policy = RetryPolicy(max_attempts=attempts)
    return TokenExactModel(
        server,
        renderer,
        parser=get_parser("hermes"),
        retrier=Retrier(AdaptiveLimiter(1), policy=policy, sleep=no_sleep),
        config=ServerConfig(server_type="vllm"),
    )


def rollout(
    server: Server,
    renderer: ChatML | None = None,
    *,
    attempts: int = 1,
    seed: int | None = 7,
    sampling: Sampling | None = None,
) -> Rollout:
    model = model_of(server, renderer or ChatML(), attempts=attempts)
    session = TokenExactSession(
        model, tools=[], sampling=sampling or Sampling(temperature=0.7, top_p=0.9), seed=seed
    )
    return Rollout(server, session)


def said(text: str) -> list[int]:
    return [*ids_of(text), END]


RESULT: Message = {"role": "tool", "content": "a b", "tool_call_id": "1"}


async def test_each_prompt_is_the_one_before_and_what_was_sampled_and_what_is_new() -> None:
    run = rollout(Server([said(CALL), said("Done.")]))
    await run.turn(RESULT)
    await run.turn()
    first, second = (asked.prompt for asked in run.server.asked)
    sampled = said(CALL)
    assert second[: len(first)] == first
    assert second[len(first) : len(first) + len(sampled)] == sampled
    new = [10, START, *ids_of("tool:a b"), END, 10, START, *ids_of("assistant:")]
    assert second[len(first) + len(sampled) :] == new


async def test_only_sampled_ids_are_unmasked_and_have_a_logprob() -> None:
    run = rollout(Server([said(CALL), said("Done.")]))
    await run.turn(RESULT)
    await run.turn()
    (sequence,) = run.session.sequences
    first, second = (asked.prompt for asked in run.server.asked)
    sampled = {*range(len(first), len(first) + len(said(CALL)))}
    sampled |= {*range(len(second), len(second) + len(said("Done.")))}
    assert sequence.tokens == [*second, *said("Done.")]
    for position, token_id in enumerate(sequence.tokens):
        is_sampled = position in sampled
        assert sequence.masked_tokens[position] == (token_id if is_sampled else -100)
        assert (sequence.logprobs[position] == 1.0) is not is_sampled
    assert sequence.logprobs[len(first) : len(first) + 2] == [-0.5, -0.51]


async def test_the_end_token_is_neither_doubled_nor_dropped() -> None:
    run = rollout(Server([said(CALL), said(CALL), said("Done.")]))
    await run.turn(RESULT)
    await run.turn(RESULT)
    await run.turn()
    (sequence,) = run.session.sequences
    turns = "".join("E" if i == END else "S" if i == START else "." for i in sequence.tokens)
    assert "EE" not in turns
    assert turns.count("E") == turns.count("S")


async def test_a_turn_cut_by_length_gets_its_end_token_masked() -> None:
    run = rollout(
        Server([ids_of("x" * 90), said("Done.")]), sampling=Sampling(max_tokens_per_turn=50)
    )
    cut = await run.turn({"role": "user", "content": "go on"})
    await run.turn()
    (sequence,) = run.session.sequences
    end = len(run.server.asked[0].prompt) + 50
    assert cut.finish_reason == "length"
    assert cut.stop is None
    assert sequence.tokens[end - 1 : end + 1] == [ord("x"), END]
    assert sequence.masked_tokens[end - 1 : end + 1] == [ord("x"), -100]
    assert sequence.metadata["finish_reasons"] == ["length", "stop"]


async def test_text_is_parsed_into_calls_reasoning_and_content() -> None:
    run = rollout(Server([said(f"<think>look first</think>I look.\n{CALL}")]))
    turn = await run.turn()
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [
        ("terminal", '{"command": "ls"}')
    ]
    assert turn.reasoning == "look first"
    assert turn.message is not None
    assert turn.message["content"] == "I look."
    assert turn.message["reasoning_content"] == "look first"
    assert turn.finish_reason == "tool_calls"
    assert turn.raw_text == f"<think>look first</think>I look.\n{CALL}"


async def test_a_malformed_call_is_data_and_its_ids_are_kept() -> None:
    broken = CALL.replace('"ls"', '"ls')
    run = rollout(Server([said(broken), said("Done.")]))
    turn = await run.turn({"role": "user", "content": "again"})
    await run.turn()
    assert len(turn.invalid_calls) == 1
    first = run.server.asked[0].prompt
    assert run.server.asked[1].prompt[len(first) : len(first) + len(said(broken))] == said(broken)


async def test_history_that_was_changed_forks_and_is_counted() -> None:
    run = rollout(Server([said("one"), said("two")]))
    await run.turn({"role": "user", "content": "more"})
    run.messages[1] = {"role": "assistant", "content": "rewritten"}
    await run.turn()
    first, second = run.session.sequences
    assert run.session.forks == 1
    assert text_of(first.tokens).endswith("one")
    assert text_of(second.tokens).endswith("two")
    assert second.metadata["forks"] == 1
    assert run.server.asked[1].prompt == await ChatML().start(run.messages[:3], [])


async def test_a_template_that_cannot_be_extended_forks_and_is_counted() -> None:
    renderer = ChatML()
    renderer.can_extend = False
    run = rollout(Server([said("one"), said("two"), said("three")]), renderer)
    for _ in range(3):
        await run.turn({"role": "user", "content": "more"})
    assert run.session.forks == 2
    assert [text_of(s.tokens).rpartition(":")[2] for s in run.session.sequences] == [
        "one",
        "two",
        "three",
    ]


async def test_a_conversation_that_only_grows_never_forks() -> None:
    run = rollout(Server([said(str(number)) for number in range(5)]))
    for _ in range(5):
        await run.turn({"role": "user", "content": "more"})
    assert run.session.forks == 0
    assert len(run.session.sequences) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda sample: replace(sample, logprobs=sample.logprobs[1:]),
        lambda sample: replace(sample, logprobs=[*sample.logprobs, -1.0]),
        lambda sample: replace(sample, logprobs=[1.0] * len(sample.ids)),
        lambda sample: replace(sample, logprobs=[float("nan")] * len(sample.ids)),
        lambda sample: replace(sample, logprobs=[float("-inf")] * len(sample.ids)),
        lambda sample: replace(sample, logprobs=[None] * len(sample.ids)),  # type: ignore[list-item]
        lambda sample: replace(sample, ids=[1.5] * len(sample.ids)),  # type: ignore[list-item]
    ],
    ids=["one less", "one more", "positive", "nan", "infinite", "no number", "no id"],
)
async def test_ids_without_their_logprobs_are_refused(wrong: Callable[[Sample], Sample]) -> None:
    run = rollout(Server([said("one")], change=wrong))
    with pytest.raises(ModelProtocolError, match="log-probabilit"):
        await run.turn()
    assert run.session.sequences == []


async def test_a_server_that_saw_another_prompt_is_refused() -> None:
    run = rollout(Server([said("one")], echo=lambda prompt: [BOS, *prompt]))
    with pytest.raises(ModelProtocolError, match="saw another prompt"):
        await run.turn()


async def test_a_server_that_echoes_the_prompt_is_believed() -> None:
    run = rollout(Server([said("one")], echo=lambda prompt: prompt))
    assert (await run.turn()).raw_text == "one"


async def test_a_failed_call_leaves_no_trace_and_can_be_made_again() -> None:
    run = rollout(Server([said(CALL), ModelTransient("down"), said("Done.")]))
    await run.turn(RESULT)
    before = run.session.sequences[0].tokens
    with pytest.raises(ModelTransient):
        await run.turn()
    assert run.session.sequences[0].tokens == before
    await run.turn()
    assert run.server.asked[1].prompt == run.server.asked[2].prompt
    assert run.session.forks == 0


async def test_turns_without_an_end_token_are_cut_where_their_text_ends() -> None:
    run = rollout(Server([ids_of(f"{CALL} and then I"), ids_of("x")]), Transcript())
    turn = await run.turn(RESULT)
    pieces = list(run.server.asked)
    assert turn.raw_text == CALL
    assert len(turn.tool_calls) == 1
    assert [piece.max_tokens for piece in pieces] == [PIECE_TOKENS] * len(pieces)
    sampled = ids_of(CALL)
    for number, piece in enumerate(pieces):
        assert piece.prompt == pieces[0].prompt + sampled[: number * PIECE_TOKENS]
    (sequence,) = run.session.sequences
    assert sequence.tokens == pieces[0].prompt + sampled
    assert turn.usage.completion_tokens == len(sampled)


async def test_a_cut_turn_is_followed_by_exactly_what_is_new() -> None:
    run = rollout(Server([ids_of(f"{CALL}xyz"), ids_of("x")]), Transcript())
    await run.turn(RESULT)
    kept = list(run.session.sequences[0].tokens)
    run.server._rest = []
    await run.turn()
    assert run.server.asked[-1].prompt[: len(kept) + 1] == [*kept, 10]


async def test_a_retry_within_a_turn_goes_on_from_what_was_sampled() -> None:
    server = Server([ids_of(CALL[:PIECE_TOKENS]), ids_of(CALL[PIECE_TOKENS:])])
    failures = iter([None, ModelTransient("reset"), None, None, None, None])

    def fail_once(sample: Sample) -> Sample:
        failure = next(failures, None)
        if failure is not None:
            server._rest = [*sample.ids, *server._rest]
            raise failure
        return replace(sample, finish="length")

    server.change = fail_once
    run = rollout(server, Transcript(), attempts=3)
    turn = await run.turn()
    assert turn.raw_text == CALL
    assert server.asked[1].prompt == server.asked[2].prompt
    assert turn.usage.requests == len(server.asked)


async def test_the_sequence_budget_bounds_the_turn_and_then_ends_the_rollout() -> None:
    start = len(await ChatML().start([USER], []))
    sampling = Sampling(max_token_length=start + 40)
    run = rollout(Server([ids_of("y" * 100)]), sampling=sampling)
    cut = await run.turn({"role": "user", "content": "more"})
    assert run.server.asked[0].max_tokens == 40
    assert cut.stop is StopReason.TOKEN_LIMIT
    assert len(run.session.sequences[0].tokens) == start + 40
    over = await run.turn()
    assert (over.message, over.stop) == (None, StopReason.TOKEN_LIMIT)
    assert len(run.server.asked) == 1
    assert len(run.session.sequences[0].tokens) == start + 40


async def test_an_overlong_tool_result_never_makes_the_sequence_longer_than_its_budget() -> None:
    sampling = Sampling(max_token_length=400)
    run = rollout(Server([said(CALL)]), sampling=sampling)
    await run.turn({**RESULT, "content": "z" * 500})
    over = await run.turn()
    assert over.stop is StopReason.TOKEN_LIMIT
    assert len(run.session.sequences[0].tokens) < 400


async def test_the_context_bounds_the_turn_and_then_ends_the_rollout() -> None:
    start = len(await ChatML().start([USER], []))
    run = rollout(Server([ids_of("y" * 100)], context_tokens=start + 30))
    assert (await run.turn()).stop is StopReason.CONTEXT_LENGTH
    assert run.server.asked[0].max_tokens == 30
    over = await run.turn()
    assert (over.message, over.stop) == (None, StopReason.CONTEXT_LENGTH)


async def test_a_prompt_that_the_server_refuses_as_too_long_is_a_limit() -> None:
    run = rollout(Server([PromptTooLong("too long")]))
    over = await run.turn()
    assert (over.message, over.stop) == (None, StopReason.CONTEXT_LENGTH)
    assert over.usage.requests == 1
    assert run.session.sequences == []


async def test_seeds_differ_between_turns_and_repeat_between_runs() -> None:
    seeds: list[list[int | None]] = []
    for seed in (7, 7, 8, None):
        run = rollout(Server([said("one"), said("two")]), seed=seed)
        await run.turn({"role": "user", "content": "more"})
        await run.turn()
        seeds.append([asked.seed for asked in run.server.asked])
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4
    assert seeds[3] == [None, None]


async def test_sampling_reaches_the_server_and_the_metadata() -> None:
    run = rollout(Server([said("one")]))
    turn = await run.turn()
    (asked,) = run.server.asked
    assert (asked.temperature, asked.top_p, asked.max_tokens) == (0.7, 0.9, None)
    metadata = run.session.sequences[0].metadata
    assert metadata["logprob_mode"] == "raw"
    assert metadata["temperature"] == 0.7
    assert metadata["weight_versions"] == ["v1"]
    assert metadata["finish_reason"] == "stop"
    assert turn.usage.prompt_tokens == len(asked.prompt)


async def test_the_model_opens_sessions_with_the_smaller_context() -> None:
    model = model_of(Server([said("one")], context_tokens=100), ChatML())
    model.config = ServerConfig(context_tokens=60)
    assert model.context_tokens == 60
    async with model.session(tools=[], sampling=Sampling(), seed=1) as session:
        assert (await session.complete([USER])).raw_text == "one"


def test_sequences_do_not_grow_with_later_turns() -> None:
    exact = ExactTokens()
    exact.add_turn([1, 2], Sample(ids=[3], logprobs=[-0.1], finish="stop"))
    first = exact.to_sequence({})
    exact.add_turn([4], Sample(ids=[5], logprobs=[-0.2], finish="stop"))
    assert first.tokens == [1, 2, 3]
    assert exact.to_sequence({}).tokens == [1, 2, 3, 4, 5]
