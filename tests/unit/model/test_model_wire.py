"""How stored messages become wire messages, each encoded once."""

from typing import Any

import anyio
import orjson
import pytest

from hermes_rl.errors import ModelRejected
from hermes_rl.model.wire import WireFormat, WireHistory
from hermes_rl.types import JSONObject, Message


def sent(message: Message, wire_format: WireFormat | None = None) -> JSONObject:
    history = WireHistory(wire_format or WireFormat())
    anyio.run(history.update, [message])
    return joined(history)[0]


def call(arguments: Any) -> JSONObject:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def joined(history: WireHistory) -> list[JSONObject]:
    decoded: list[JSONObject] = orjson.loads(b"[" + b"".join(history.pieces) + b"]")
    return decoded


class Counting(WireFormat):
    """Counts how often a message is prepared for encoding."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def to_wire(self, message: Message) -> JSONObject:
        self.count += 1
        return super().to_wire(message)


async def test_each_message_is_encoded_once() -> None:
    wire_format = Counting()
    history = WireHistory(wire_format)
    messages: list[Message] = []
    for number in range(50):
        messages.append({"role": "user", "content": str(number)})
        await history.update(messages)
    assert wire_format.count == 50
    assert joined(history) == messages
    assert history.size_bytes == len(b"".join(history.pieces))


async def test_equal_copies_of_messages_are_not_a_fork() -> None:
    wire_format = Counting()
    history = WireHistory(wire_format)
    await history.update([{"role": "user", "content": "a"}])
    await history.update([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert (history.forks, wire_format.count) == (0, 2)


async def test_a_fork_keeps_the_common_part_and_its_size() -> None:
    wire_format = Counting()
    history = WireHistory(wire_format)
    await history.update([{"role": "user", "content": text} for text in "abc"])
    await history.update([{"role": "user", "content": text} for text in "axyz"])
    assert (history.forks, wire_format.count) == (1, 6)
    assert [message["content"] for message in joined(history)] == list("axyz")
    assert history.size_bytes == len(b"".join(history.pieces))


@pytest.mark.parametrize(
    ("arguments", "on_the_wire"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": 1', "{}"),
        ("[1]", "{}"),
        ("null", "{}"),
        ("", "{}"),
        ("rm -rf", "{}"),
        (None, "{}"),
    ],
)
def test_only_json_objects_are_replayed_as_arguments(arguments: Any, on_the_wire: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    before = orjson.dumps(message)
    assert sent(message)["tool_calls"][0]["function"]["arguments"] == on_the_wire
    assert orjson.dumps(message) == before


def test_content_is_null_beside_calls_and_empty_elsewhere() -> None:
    with_calls = sent({"role": "assistant", "content": None, "tool_calls": [call("{}")]})
    assert with_calls["content"] is None
    assert sent({"role": "assistant", "content": None}) == {"role": "assistant", "content": ""}
    assert sent({"role": "tool", "tool_call_id": "1"})["content"] == ""


def test_other_nulls_are_left_out() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None}
    assert sent(message) == {"role": "assistant", "content": "x"}


def test_content_parts_pass_through() -> None:
    parts = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    assert sent({"role": "user", "content": parts})["content"] == parts


def test_invalid_unicode_becomes_the_replacement_character() -> None:
    message = {"role": "user", "content": "a\ud800b \ud83d\ude00", "more": ["\udfff"]}
    assert sent(message) == {"role": "user", "content": "a\ufffdb \U0001f600", "more": ["\ufffd"]}


def test_what_json_cannot_express_is_a_rejection() -> None:
    with pytest.raises(ModelRejected, match=r"Message 0 \(user\)"):
        sent({"role": "user", "content": {1, 2}})


def test_reasoning_of_other_roles_is_never_sent() -> None:
    message = {"role": "user", "content": "x", "reasoning_content": "y"}
    assert sent(message, WireFormat("keep")) == {"role": "user", "content": "x"}
