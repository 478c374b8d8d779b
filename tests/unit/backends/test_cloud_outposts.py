"""Starting outposts at a cloud: what is told when neither python3 nor ours will do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import anyio
import pytest

from hermes_rl.backends.cloud_outposts import CloudOutposts
from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import CloudBox, CloudVendor
from hermes_rl.backends.outpost.start import OutpostStart, PythonMissing, outpost_options
from hermes_rl.backends.shipment import Shipment, TerminalMissing
from hermes_rl.errors import BackendUnavailable, ChannelLost, CreateError, SandboxError

START = OutpostStart.of(outpost_options(lease_s=60))


@dataclass(slots=True)
class Vendor:
    """What of a cloud names what would help."""

    name: str = "cloudy"
    python_hint: str = "Use another image."


class Stream(CloudStream):
    """Answers a shipment's script with one line and takes no bytes itself."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer
        self.released = 0

    async def send(self, data: bytes) -> None:
        raise ConnectionResetError("cut off")

    async def put(self, data: bytes) -> None:
        raise AssertionError("nothing is sent")

    async def take_all(self) -> None:
        await self.arrived(self.answer)
        await anyio.sleep_forever()

    async def release(self) -> None:
        self.released += 1


@dataclass(slots=True)
class Box:
    """A sandbox without python3; what a shipment meets is given."""

    met: Stream | SandboxError
    id: str = "box-1"
    asked: list[str] = field(default_factory=list)

    async def start_outpost(self, start: OutpostStart | Shipment) -> CloudStream:
        self.asked.append(type(start).__name__)
        if isinstance(start, OutpostStart):
            raise PythonMissing
        if isinstance(self.met, SandboxError):
            raise self.met
        return self.met


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@asynccontextmanager
async def outposts(cache_dir: Path) -> AsyncIterator[CloudOutposts]:
    async with anyio.create_task_group() as tasks:
        yield CloudOutposts(cast("CloudVendor", Vendor()), cache_dir=cache_dir, tasks=tasks)
        tasks.cancel_scope.cancel()


async def refusal(cache_dir: Path, boxes: Sequence[Box]) -> SandboxError:
    async with outposts(cache_dir) as starting:
        for box in boxes:
            with pytest.raises(SandboxError) as caught:
                await starting.start(cast("CloudBox", box), START, image="image:1")
    return caught.value


@pytest.mark.parametrize(
    ("met", "told"),
    [
        (PythonMissing(), "there is no /bin/sh"),
        (TerminalMissing("the image has no stty"), "the image has no stty"),
    ],
    ids=["shell", "terminal"],
)
async def test_an_image_that_takes_no_shipment_is_named_with_what_helps(
    met: SandboxError, told: str, cache_dir: Path
) -> None:
    first, second = Box(met), Box(met)
    error = await refusal(cache_dir, [first, second])
    assert type(error) is CreateError
    assert (error.backend, error.sandbox_id, error.retryable) == ("cloudy", "box-1", False)
    assert "Image image:1 has no python3" in str(error)
    assert told in str(error)
    assert str(error).endswith("Use another image.")
    assert (first.asked, second.asked) == (["OutpostStart", "Shipment"], ["Shipment"])


async def test_what_the_vendor_cannot_now_is_passed_on(cache_dir: Path) -> None:
    error = await refusal(cache_dir, [Box(BackendUnavailable("try later"))])
    assert (type(error), str(error)) == (BackendUnavailable, "try later")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"done /there\n", ChannelLost), (b"write /\n", BackendUnavailable), (b"?\n", CreateError)],
)
async def test_a_stream_that_is_given_up_is_closed(
    answer: bytes, expected: type[SandboxError], cache_dir: Path
) -> None:
    stream = Stream(answer)
    async with outposts(cache_dir) as starting:
        with pytest.raises(expected):
            await starting.start(cast("CloudBox", Box(stream)), START, image="image:1")
        with anyio.fail_after(60):
            await stream.closed.wait()
    assert stream.released == 1


async def test_an_interpreter_that_cannot_be_made_now_may_be_later(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = await refusal(tmp_path / "file" / "cache", [Box(Stream(b""))])
    assert type(error) is BackendUnavailable
    assert "Image image:1 has no python3" in str(error)
