"""The seam between the channel and whatever carries its bytes (attach, pipe, ssh, exec stream)."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Transport"]


class Transport(Protocol):
    """A duplex byte stream to one outpost process."""

    async def send(self, data: bytes) -> None:
        """Write all of ``data``; waits while the peer does not read.

        Raises:
            ConnectionError: The stream is closed.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end of the stream.

        Raises:
            ConnectionError: The stream broke.
        """
        ...

    async def aclose(self) -> None:
        """Close both directions. Idempotent."""
        ...
