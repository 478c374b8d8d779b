"""The stream of one Modal exec: standard input by calls, standard output by a subscription.

The SDK resumes both after a broken connection, by offset, so nothing is lost or doubled. Its
``drain`` forgets what is written while it runs; here only one caller writes and drains.
"""

from __future__ import annotations

from typing import Any

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.modal_errors import TABLE
from hermes_rl.errors import HermesRLError

__all__ = ["ModalStream"]

WRITE_LIMIT_S = 120.0
"""Longest write: the SDK's own retries end within a minute."""


class ModalStream(CloudStream):
    """Carries bytes to and from a ``modal.container_process.ContainerProcess``."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self.process = process

    async def put(self, data: bytes) -> None:
        """Write to standard input."""
        try:
            with TABLE.call("use", limit_s=WRITE_LIMIT_S):
                self.process.stdin.write(data)
                await self.process.stdin.drain.aio()
        except HermesRLError as error:
            raise ConnectionResetError(str(error)) from error

    async def release(self) -> None:
        """Nothing is held: the exec ends with its sandbox."""

    async def take_all(self) -> None:
        """Pass standard output on."""
        try:
            with TABLE.call("use", limit_s=None):
                async for data in self.process.stdout:
                    await self.arrived(data)
        except HermesRLError as error:
            raise ConnectionResetError(str(error)) from error
