"""How an outpost gets started in a cloud's sandbox: on the image's python3, or on ours.

An image without python3 is noticed by its first sandboxes, for one failed start each; from then on
our interpreter goes along with every sandbox of it, over the stream that the outpost then uses.
"""

from __future__ import annotations

from pathlib import Path

from anyio.abc import TaskGroup

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import CloudBox, CloudVendor
from hermes_rl.backends.outpost.start import OutpostStart, PythonMissing
from hermes_rl.backends.shipment import InterpreterStock, NotTaken, Shipment, TerminalMissing
from hermes_rl.errors import BackendUnavailable, ChannelLost, CreateError, SandboxError

__all__ = ["CloudOutposts"]

PLACES = ("/.hermes", "/tmp/.hermes", "/var/tmp/.hermes", '"$HOME/.hermes"', "/dev/shm/.hermes")
"""For our interpreter, as words of the shell there; the first that will do is taken."""


class CloudOutposts:
    """Starts the outposts of one backend.

    Args:
        vendor: The cloud.
        cache_dir: Where our interpreter is kept here.
        tasks: The streams are carried in it.
    """

    def __init__(self, vendor: CloudVendor, *, cache_dir: Path, tasks: TaskGroup) -> None:
        self._vendor = vendor
        self._stock = InterpreterStock(cache_dir, tasks)
        self._tasks = tasks
        self._without_python: set[str] = set()

    async def start(self, box: CloudBox, start: OutpostStart, *, image: str) -> CloudStream:
        """Start an outpost and return its stream, running.

        Args:
            box: The sandbox.
            start: The outpost's options and source.
            image: What the sandbox is made from; no other image has this name.

        Raises:
            CreateError: There is no python3 and ours cannot be used; names what helps.
            SandboxError: The vendor's.
        """
        if image not in self._without_python:
            try:
                stream = await box.start_outpost(start)
            except PythonMissing:
                self._without_python.add(image)
            else:
                self._tasks.start_soon(stream.run)
                return stream
        try:
            return await self._start_on_ours(box, start)
        except NotTaken as error:
            kind = CreateError if error.is_final else BackendUnavailable
            raise self._unusable(kind, str(error), box=box, image=image) from error
        except TerminalMissing as error:
            raise self._unusable(CreateError, str(error), box=box, image=image) from error
        except PythonMissing as error:
            why = "there is no /bin/sh to unpack it (exit code 127)"
            raise self._unusable(CreateError, why, box=box, image=image) from error

    def _unusable(
        self, kind: type[SandboxError], why: str, *, box: CloudBox, image: str
    ) -> SandboxError:
        return kind(
            f"Image {image} has no python3 (3.8 or newer), which the sandbox's supervisor needs, "
            f"and ours cannot be used there: {why}. {self._vendor.python_hint}",
            backend=self._vendor.name,
            sandbox_id=box.id,
        )

    async def _start_on_ours(self, box: CloudBox, start: OutpostStart) -> CloudStream:
        shipment = Shipment(await self._stock.bundle(), PLACES, start)
        stream = await box.start_outpost(shipment)
        self._tasks.start_soon(stream.run)
        try:
            await shipment.deliver(stream)
            await stream.send(start.preamble)
        except BaseException as error:
            await stream.aclose()
            if not isinstance(error, OSError):
                raise
            raise ChannelLost(str(error), backend=self._vendor.name, sandbox_id=box.id) from error
        return stream
