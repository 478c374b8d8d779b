"""Whatever a sandbox answers, its users get results or errors of ours, and memory is bounded.

An agent that is root writes to its supervisor's stream what it likes, with the ids of requests
that wait: those it can count.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.backends.outpost.answers import Reply
from hermes_rl.backends.outpost.channel import Loss, OutpostChannel
from hermes_rl.backends.outpost.frames import Kind, frame, pack_fields, pack_list
from hermes_rl.backends.outpost.process import Execution, OutpostProcess
from hermes_rl.backends.outpost.request import RunRequest
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.errors import HermesRLError, SandboxError, SandboxGone
from hermes_rl.sandbox import Capability, ExecResult

HEADER = struct.Struct(">BII")
NUMBERS = [b"0", b"-1", b"9" * 25, b"9" * 400, b"9" * 5000, b"1e3", b"nan", b"", b"\xff", b"x"]
NAMES = [
    *("code", "signal", "timed_out", "duration_us", "background", "out", "err", "out_total"),
    *("err_total", "out_head", "err_head", "cwd", "errno", "text", "reason", "pid"),
]
SENSIBLE = {"code": b"0", "signal": b"0", "timed_out": b"0", "background": b"0"}
ENTRY = [b"name", b"file", b"1", b"1", b"420"]


class Forger:
    """A transport: what is sent to it is answered with frames of the test's choice."""

    def __init__(self, answer: Callable[[int, int], bytes]) -> None:
        self.answer = answer
        self._give, self._take = anyio.create_memory_object_stream[bytes](1000)

    async def send(self, data: bytes) -> None:
        kind, id, _ = HEADER.unpack_from(data)
        try:
            self._give.send_nowait(self.answer(kind, id))
        except (anyio.ClosedResourceError, anyio.WouldBlock):
            raise ConnectionResetError("closed") from None
        await anyio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        try:
            return await self._take.receive()
        except anyio.EndOfStream:
            return b""

    async def aclose(self) -> None:
        self._give.close()


class Box(OutpostSandbox):
    """A sandbox that says whose fault its end was."""

    async def _explain(self, loss: Loss) -> SandboxError:
        return SandboxGone(loss.reason, by_agent=loss.is_by_agent)


async def _stream(box: Box) -> object:
    async with box.stream("x") as process:
        return [chunk async for chunk in process]


async def _download(box: Box, local: Path) -> None:
    await box.download("/x", local / "target")


USES: dict[str, Callable[[Box, Path], Awaitable[object]]] = {
    "exec": lambda box, _: box.exec("x", timeout_s=0.1, max_output_bytes=1000),
    "stream": lambda box, _: _stream(box),
    "read": lambda box, _: box.read("/x", max_bytes=1000),
    "write": lambda box, _: box.write("/x", b"x"),
    "list": lambda box, _: box.list("/x"),
    "upload": lambda box, local: box.upload(local / "source", "/x"),
    "download": _download,
    "ping": lambda box, _: box.ping(timeout_s=0.1),
    "kill_all": lambda box, _: box.kill_all(),
}
"""Everything that waits for an answer."""


async def used(
    name: str, answer: Callable[[int, int], bytes], local: Path, hang_up_s: float = 0.003
) -> object:
    """Return what a use comes to; the stream ends soon after the answer, if that did not end it."""
    transport = Forger(answer)
    box = Box(id="box", backend="test", transport=transport, capabilities=frozenset(Capability))

    async def hang_up() -> None:
        await anyio.sleep(hang_up_s)
        await transport.aclose()

    async with anyio.create_task_group() as group:
        group.start_soon(box.serve)
        group.start_soon(hang_up)
        try:
            with anyio.fail_after(60):
                return await USES[name](box, local)
        except HermesRLError as error:
            return error
        finally:
            await transport.aclose()
            group.cancel_scope.cancel()


def fields_of(some: dict[str, bytes]) -> bytes:
    return pack_fields(SENSIBLE | some)


numbers = st.sampled_from(NUMBERS)
fields = st.dictionaries(st.sampled_from(NAMES), numbers | st.binary(max_size=8)).map(fields_of)
lists = st.lists(st.sampled_from(ENTRY) | numbers | st.binary(max_size=4), max_size=12)
entries = st.tuples(st.just(b"name"), st.just(b"file"), numbers, numbers, numbers)
payloads = st.one_of(st.binary(max_size=40), fields, lists.map(pack_list), entries.map(pack_list))
kinds = st.sampled_from([kind for kind in Kind if kind >= Kind.HELLO])
answers = st.lists(st.tuples(kinds, payloads), max_size=4)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    local = tmp_path_factory.mktemp("local")
    (local / "source").write_bytes(b"x")
    return local


@pytest.mark.parametrize("name", USES)
@settings(max_examples=60, deadline=None)
@given(frames=answers)
def test_whatever_is_answered_becomes_a_result_or_an_error_of_ours(
    local: Path, name: str, frames: list[tuple[int, bytes]]
) -> None:
    def answer(_: int, id: int) -> bytes:
        return b"".join(frame(kind, id, payload) for kind, payload in frames)

    result = anyio.run(used, name, answer, local)
    if isinstance(result, ExecResult):
        numbers = [value for value in asdict(result).values() if isinstance(value, int)]
        assert all(0 <= number < 1 << 63 for number in numbers), "no log could hold it"


@pytest.mark.parametrize(
    ("name", "kind", "payload"),
    [
        ("exec", Kind.RESULT, fields_of({"duration_us": b"9" * 400})),
        ("exec", Kind.RESULT, fields_of({"duration_us": b"1", "out_total": b"9" * 20})),
        ("exec", Kind.FAILED, pack_fields({"reason": "start", "errno": "x"})),
        ("read", Kind.FAILED, pack_fields({"errno": "nan"})),
        ("download", Kind.FAILED, pack_fields({"errno": "-1"})),
        ("list", Kind.CHUNK, pack_list([*ENTRY[:3], b"9" * 400, b"1"])),
        ("list", Kind.CHUNK, pack_list([*ENTRY[:3], b"1"])),
        ("list", Kind.CHUNK, pack_list(ENTRY * 10_001)),
        ("list", Kind.CHUNK, b"\0\0\0\2x"),
    ],
)
async def test_what_no_outpost_would_answer_is_the_agents_doing(
    local: Path, name: str, kind: Kind, payload: bytes
) -> None:
    def answer(_: int, id: int) -> bytes:
        return frame(kind, id, payload) + frame(Kind.DONE, id)

    result = await used(name, answer, local, hang_up_s=60)
    assert isinstance(result, SandboxGone)
    assert result.by_agent, result


async def _process() -> OutpostProcess:
    return OutpostProcess(OutpostChannel(Forger(lambda kind, id: b"")), RunRequest(cmd="x"))


@pytest.mark.parametrize("size_bytes", [0, 2])
@pytest.mark.parametrize("what", ["reply", "execution", "process"])
async def test_small_frames_take_no_more_memory_than_what_they_hold(
    what: str, size_bytes: int
) -> None:
    waiter = {
        "reply": Reply(limit_bytes=1 << 20),
        "execution": Execution(RunRequest(cmd="x", limit_bytes=1 << 20)),
        "process": await _process(),
    }[what]
    kind = Kind.CHUNK if what == "reply" else Kind.STDOUT
    tracemalloc.start()
    try:
        for _ in range(50_000):
            waiter.received(kind, bytes(size_bytes))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 50_000 * size_bytes * 2 + 100_000
