"""The transcript of the embedded model, with a tokenizer whose ids are code points."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from hermes_rl.envs.terminal_test_env.task_set import FileTask, TerminalTest
from hermes_rl.model.embedded_preamble import EXAMPLES, preamble
from hermes_rl.model.embedded_renderer import EmbeddedRenderer, has_ended
from hermes_rl.types import JSONObject, Message

BOS = 0x110000
TERMINAL: JSONObject = {
    "type": "function",
    "function": {
        "name": "terminal",
        "parameters": {"type": "object", "properties": {}, "required": ["command"]},
    },
}
CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'
USER: Message = {"role": "user", "content": "list"}
ASKED: Message = {
    "role": "assistant",
    "content": "ls",
    "tool_calls": [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "terminal", "arguments": '{"command": "ls"}'},
        }
    ],
}
RESULT: Message = {"role": "tool", "content": '{"output":"a"}', "tool_call_id": "1"}


EOS = 0x110001


class Codepoints:
    end_ids = frozenset({EOS})

    async def tokenize(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    async def opening(self) -> list[int]:
        return [BOS]

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join("<eos>" if token_id == EOS else chr(token_id) for token_id in ids)


RENDERER = EmbeddedRenderer(Codepoints())


async def started(*messages: Message, tools: Sequence[JSONObject] = ()) -> str:
    first, *ids = await RENDERER.start(messages, tools)
    assert first == BOS
    return "".join(map(chr, ids))


async def extended(turn: str, *messages: Message) -> str:
    return "".join(map(chr, await RENDERER.extend([ord(c) for c in turn], messages)))


async def test_a_conversation_opens_with_tools_and_examples_and_ends_where_the_model_speaks() -> (
    None
):
    text = await started(USER, tools=[TERMINAL])
    assert text.startswith("Tools:\nterminal(command)\n\nUser: ")
    assert text.endswith("\n\nUser: list\nAssistant:")
    assert text.count("\nTool: ") == len(EXAMPLES)


async def test_without_the_terminal_there_are_no_examples_of_it() -> None:
    other = {"type": "function", "function": {"name": "todo"}}
    assert await started(USER, tools=[other]) == "Tools:\ntodo()\n\nUser: list\nAssistant:"
    assert await started(USER) == "User: list\nAssistant:"


async def test_a_system_prompt_comes_before_the_user() -> None:
    text = await started({"role": "system", "content": "Be brief."}, USER)
    assert text == "System: Be brief.\n\nUser: list\nAssistant:"


async def test_extending_gives_the_text_that_rendering_afresh_gives() -> None:
    afresh = await started(USER, ASKED, RESULT)
    turn = f" ls\n{CALL}"
    assert await started(USER) + turn + await extended(turn, RESULT) == afresh


async def test_a_finished_answer_is_followed_by_the_next_user_with_one_empty_line() -> None:
    for turn in (" Done.", " Done.\n", " Done.\n\n"):
        assert turn + await extended(turn, USER) == " Done.\n\nUser: list\nAssistant:"


async def test_text_parts_of_a_message_are_shown() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {}}]
    message: Message = {"role": "tool", "content": parts}
    assert await extended(f" {CALL}", message) == "\nTool: one\nAssistant:"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (f" ls\n{CALL}\nTool: {{}}", len(f" ls\n{CALL}")),
        (" Done.\n\nUser: and", len(" Done.\n\n")),
        (" Done.\nUser: and", len(" Done.\nUser:")),
        (" a\n<tool_call>\n{\n\n\n\n", None),
        (" a\n<tool_call>\n{\nTool: x", len(" a\n<tool_call>\n{\nTool:")),
        (" half a sentence\n", None),
    ],
)
async def test_a_turn_ends_after_the_first_token_that_completes_its_end(
    text: str, length: int | None
) -> None:
    ids = [ord(char) for char in text]
    assert await RENDERER.turn_end(ids) == length
    if length is not None:
        assert await RENDERER.turn_end(ids, searched=length - 1) == length
        assert has_ended(text[:length])
        assert not has_ended(text[: length - 1])


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (" Done.\n\n", "Done."),
        (" Done.\nUser:", "Done."),
        (f" ls\n{CALL}", f"ls\n{CALL}"),
        ("\n\n", ""),
    ],
)
async def test_what_ended_a_turn_is_not_part_of_its_text(turn: str, text: str) -> None:
    assert await RENDERER.read([ord(char) for char in turn]) == text


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def _words(text: str) -> list[str]:
    return re.findall(r"[\w$+*~./'-]+", text.lower())


def _phrases(text: str, length: int) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


async def _tasks(seeds: Sequence[int]) -> list[FileTask]:
    return [task for seed in seeds for task in await TerminalTest(seed).load()]


SHOWN = preamble([TERMINAL])


async def test_the_preamble_holds_no_path_text_or_number_of_any_bundled_task() -> None:
    for task in await _tasks([0]):
        assert task.path.removeprefix("~/") not in SHOWN
        assert task.expected not in SHOWN
        assert not _numbers(f"{task.prompt} {task.expected}") & _numbers(SHOWN)


async def test_the_preamble_shares_no_phrase_of_four_words_with_any_task() -> None:
    shown = _phrases(SHOWN, 4)
    for task in await _tasks(range(20)):
        assert not _phrases(task.prompt, 4) & shown
        assert task.path.removeprefix("~/") not in SHOWN


async def test_the_token_that_ended_a_turn_is_no_text() -> None:
    assert await RENDERER.read([*map(ord, "Done."), EOS]) == "Done."
    assert await RENDERER.read([EOS]) == ""
