"""The template matrix: twelve families, each extended turn by turn or forked and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.model import Sampling
from hermes_rl.model.hf_renderer import HFRenderer
from hermes_rl.model.hf_tokenizer import ChatTokenizer
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.retry import Retrier
from hermes_rl.model.sample import Sample
from hermes_rl.model.token_exact import TokenExactModel, TokenExactSession
from hermes_rl.parsers import get_parser
from hermes_rl.parsers.format import Format
from hermes_rl.parsers.selftest import template_fault
from hermes_rl.types import JSONObject, Message, ToolCall
from tests.unit.model.chat_families import FAMILIES, HERMES, QWEN3, Family, trained

TERMINAL: JSONObject = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
ASK: Message = {"role": "user", "content": "What is in /tmp?"}
MORE: Message = {"role": "user", "content": "And now?"}
by_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@dataclass
class Playback:
    """Samples the turns it was given."""

    turns: list[list[int]]
    finish: str = "stop"
    name: str = "playback"
    context_tokens: int | None = None
    logprob_mode: str = "raw"
    prompts: list[list[int]] = field(default_factory=list)

    async def generate(self, prompt_ids: Sequence[int], **asked: object) -> Sample:
        self.prompts.append(list(prompt_ids))
        ids = self.turns[len(self.prompts) - 1]
        logprobs = [-0.5 - n / 1000 for n in range(len(ids))]
        finish = "length" if self.finish == "length" else "stop"
        return Sample(ids=ids, logprobs=logprobs, finish=finish, prompt_ids=prompt_ids)  # type: ignore[arg-type]


class Played:
    """A conversation with scripted turns, and what the trainer would get of it."""

    def __init__(self, family: Family, *, keeps_reasoning: bool = True) -> None:
        self.family = family
        self.fast = trained(family)
        self.tokenizer = ChatTokenizer(self.fast, name=family.name)
        self.renderer = HFRenderer(self.tokenizer, keeps_reasoning=keeps_reasoning)
        parser = get_parser(family.parser)
        assert isinstance(parser, Format)
        self.parser = parser
        self.messages: list[Message] = [ASK]
        self.server = Playback([])
        model = TokenExactModel(
            self.server,  # type: ignore[arg-type]
            self.renderer,
            parser=parser,
            retrier=Retrier(AdaptiveLimiter(1)),
            config=ServerConfig(server_type="vllm"),
        )
        self.session = TokenExactSession(model, tools=[TERMINAL], sampling=Sampling(), seed=1)

    def ids(self, text: str) -> list[int]:
        """Encode as the model's own tools would: names of control tokens are those."""
        ids: list[int] = self.fast.encode(text, add_special_tokens=False)
        return ids

    def sampled(self, text: str, *, before: str) -> list[int]:
        """Return the ids of ``text`` as they are behind ``before``."""
        head = self.ids(before)
        whole = self.ids(before + text)
        assert whole[: len(head)] == head
        return whole[len(head) :]

    def reference(self, messages: Sequence[Message], *, prompt: bool = False) -> list[int]:
        """Render and encode as ``transformers`` does it, and no code of ours."""
        shown = [_with_object(message) for message in messages]
        text = self.fast.apply_chat_template(
            shown, tools=[TERMINAL], tokenize=False, add_generation_prompt=prompt
        )
        return self.ids(text)

    async def turn(self, text: str, end: str, *then: Message) -> list[int]:
        """Let the model say ``text`` and ``end``; returns the sampled ids."""
        before = self.fast.apply_chat_template(
            [_with_object(message) for message in self.messages],
            tools=[TERMINAL],
            tokenize=False,
            add_generation_prompt=True,
        )
        ids = self.sampled(text + end, before=before)
        self.server.turns.append(ids)
        completion = await self.session.complete(self.messages)
        assert completion.message is not None
        assert not completion.invalid_calls
        self.messages += [completion.message, *then]
        return ids

    async def call(self, command: str) -> list[int]:
        """Let the model call; the next message is still to be added."""
        family = self.family
        arguments = f'{{"command": "{command}"}}'
        call_id = f"functions.terminal:{len(self.server.turns)}"
        text = self.parser.render([ToolCall(call_id, "terminal", arguments)])
        if family.name == "llama3":
            text = text.removeprefix("<|python_tag|>")
        if family.name == "mistral":
            text = '[TOOL_CALLS] [{"name": "terminal", "arguments": ' + arguments
            text += f', "id": "id{len(self.server.turns):07d}"}}]'
        text = text.removesuffix(family.call_end)
        if family.name == "gpt_oss":
            text = text.removeprefix("<|start|>assistant")
        return await self.turn(text, family.call_end)

    def result(self, text: str) -> Message:
        """Return the answer to the last call."""
        call = self.messages[-1]["tool_calls"][0]
        return {
            "role": "tool",
            "name": "terminal",
            "tool_call_id": call["id"],
            "content": text,
        }

    async def answer(self, text: str) -> list[int]:
        opening = self.family.opening
        if self.family.name == "mistral":
            opening = " "
        return await self.turn(opening + text, self.family.answer_end)

    async def whole(self, *results: str) -> None:
        """Two calls, an answer, one more request, an answer."""
        for number, result in enumerate(results):
            await self.call(f"ls {number}")
            self.messages.append(self.result(result))
        await self.answer("There are two files.")
        self.messages.append(MORE)
        await self.answer("Nothing new.")


def _with_object(message: Message) -> Message:
    import orjson

    if not message.get("tool_calls"):
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": orjson.loads(call["function"]["arguments"]),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def expected_forks(family: Family, results: int) -> int:
    return results * ("tool" in family.forks) + ("user" in family.forks)


@by_family
async def test_the_template_fits_its_parser(family: Family) -> None:
    played = Played(family)
    assert template_fault(played.renderer.render_text, played.parser) is None


@by_family
async def test_extensions_equal_the_whole_rendering_or_fork(family: Family) -> None:
    played = Played(family)
    await played.whole("a.txt\nb.txt", "<div>c</div> d")
    assert played.session.forks == expected_forks(family, 2)
    assert len(played.session.sequences) == 1 + played.session.forks
    # The last prompt is what the whole conversation is rendered to, whichever way it was made.
    prompt = played.reference(played.messages[:-1], prompt=True)
    assert played.server.prompts[-1] == prompt
    last = played.session.sequences[-1]
    assert last.tokens == [*prompt, *played.server.turns[-1]]


@by_family
async def test_only_what_was_sampled_is_trained_on(family: Family) -> None:
    played = Played(family)
    await played.whole("a.txt", "b.txt")
    sampled = [
        [token for token in sequence.masked_tokens if token != -100]
        for sequence in played.session.sequences
    ]
    assert [token for tokens in sampled for token in tokens] == [
        token for turn in played.server.turns for token in turn
    ]
    for sequence in played.session.sequences:
        for token, mask, logprob in zip(
            sequence.tokens, sequence.masked_tokens, sequence.logprobs, strict=True
        ):
            assert mask in (-100, token)
            assert (mask == -100) == (logprob == 1.0)


@by_family
async def test_names_of_control_tokens_in_tool_output_stay_text(family: Family) -> None:
    """The same conversation, once with harmless text: both have the same control tokens."""
    names = [*family.special, *family.markup]
    counts = []
    for text in ("plain", " ".join(names) + " " + "".join(names)):
        played = Played(family)
        await played.whole(text, text)
        control = {played.fast.convert_tokens_to_ids(name) for name in names}
        last = played.session.sequences[-1]
        counts.append([token for token in last.tokens if token in control])
        assert played.session.forks == expected_forks(family, 2)
        shown = played.tokenizer.decode(last.tokens)
    assert counts[0] == counts[1]
    # What was shown is the text itself, or the same within JSON.
    assert names[-1] in shown.replace("\\", "")
    assert shown.count(names[0]) >= 4


@by_family
async def test_a_turn_cut_by_length_is_ended_by_the_template(family: Family) -> None:
    played = Played(family)
    played.server.finish = "length"
    cut = await played.turn(family.opening + "There are", "")
    played.messages.append(MORE)
    played.server.finish = "stop"
    await played.answer("Two.")
    forked = "user" in family.forks and family.name != "gpt_oss"
    assert played.session.forks == forked
    if not forked:
        (sequence,) = played.session.sequences
        start = len(played.server.prompts[0]) + len(cut)
        end = sequence.tokens[start]
        assert sequence.masked_tokens[start] == -100
        assert played.fast.convert_ids_to_tokens(end) in (family.answer_end, "<|end|>")


async def test_a_turn_that_ends_with_another_token_than_the_template_forks() -> None:
    family = next(family for family in FAMILIES if family.name == "glm45")
    played = Played(family)
    # The model calls, and goes on as if the user were next: the result has another token there.
    text = played.parser.render([ToolCall("1", "terminal", '{"command": "ls"}')])
    await played.turn(text, "<|user|>")
    played.messages.append(played.result("a.txt"))
    await played.answer("Two.")
    assert played.session.forks == 1


async def test_a_turn_without_its_sampled_end_gets_it_masked() -> None:
    """Some servers leave the end token out of the ids."""
    played = Played(HERMES)
    text = played.parser.render([ToolCall("1", "terminal", '{"command": "ls"}')])
    cut = await played.turn(text, "")
    played.messages.append(played.result("a.txt"))
    await played.answer("Two.")
    assert played.session.forks == 0
    (sequence,) = played.session.sequences
    end = len(played.server.prompts[0]) + len(cut)
    assert sequence.tokens[end] == played.fast.convert_tokens_to_ids("<|im_end|>")
    assert sequence.masked_tokens[end] == -100


async def test_space_at_a_turns_end_is_kept_as_it_was_sampled() -> None:
    family = next(family for family in FAMILIES if family.name == "llama3")
    played = Played(family)
    sampled = await played.turn("Two.  \n", family.answer_end)
    played.messages.append(MORE)
    await played.answer("Done.")
    assert played.session.forks == 0
    (sequence,) = played.session.sequences
    start = len(played.server.prompts[0])
    assert sequence.tokens[start : start + len(sampled)] == sampled


async def think(played: Played) -> None:
    await played.turn("<think>\nI look.\n</think>\n\nTwo.", "<|im_end|>")
    assert played.messages[-1]["reasoning_content"] == "I look."
    played.messages.append(MORE)
    await played.answer("Done.")


async def test_reasoning_stays_in_view_without_a_fork() -> None:
    played = Played(QWEN3)
    await think(played)
    assert played.session.forks == 0
    assert "I look." in played.tokenizer.decode(played.server.prompts[-1])


async def test_a_template_that_strips_reasoning_forks_where_it_decides() -> None:
    played = Played(QWEN3, keeps_reasoning=False)
    await think(played)
    assert played.session.forks == 1
    assert played.server.prompts[-1] == played.reference(played.messages[:-1], prompt=True)
    assert "I look." not in played.tokenizer.decode(played.server.prompts[-1])


async def test_encoding_and_decoding_in_a_thread_leave_the_event_loop_free() -> None:
    tokenizer = Played(HERMES).tokenizer
    text = "".join(f"def f{number}(x): return x * {number}\n" for number in range(10_000))
    ids = await anyio.to_thread.run_sync(tokenizer.encode, text)
    assert await anyio.to_thread.run_sync(tokenizer.decode, ids) == text
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            await anyio.lowlevel.checkpoint()
            steps += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        for work, given in ((tokenizer.encode, text), (tokenizer.decode, ids * 5)):
            steps = 0
            await anyio.to_thread.run_sync(work, given)
            # 50,000 to 90,000 were counted; 1,400 where the interpreter lock is held meanwhile.
            assert steps > 8_000, work
        group.cancel_scope.cancel()
