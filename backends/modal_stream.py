"""The stream of one Modal exec: standard input by calls, standard output by a subscription.

The SDK resumes both after a broken connection, by offset, so nothing is lost or doubled. Its
``drain`` forgets what is written while it runs; here only one caller writes and drains.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.modal_errors import TABLE
from hermes_rl.errors import HermesRLError

__all__ = ["ModalStream"]

WRITE_LIMIT_S = 120.0
"""Longest write: the SDK's own retries end within a minute."""
BEGIN_LIMIT_S = 60.0
"""From the start of an exec to its first word."""


class ModalStream(CloudStream):
    """Carries bytes to and from a ``modal.container_process.ContainerProcess``."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self.process = process
        self._pieces: AsyncIterator[bytes] = aiter(process.stdout)
        self._first = b""

    async def begin(self, preamble: bytes) -> bool:
        """Write the preamble and wait for the first bytes; False = it ended without any.

        Raises:
            ConnectionResetError: The stream broke.
        """
        with suppress(ConnectionResetError):  # it may have ended already; so we read
            await self.put(preamble)
        try:
            with TABLE.call("use", limit_s=BEGIN_LIMIT_S):
                self._first = await anext(self._pieces, b"")
        except HermesRLError as error:
            raise ConnectionResetError(str(error)) from error
        return bool(self._first)

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
        await self.arrived(self._first)
        try:
            with TABLE.call("use", limit_s=None):
                async for data in self._pieces:
                    await self.arrived(data)
        except HermesRLError as error:
            raise ConnectionResetError(str(error)) from error
