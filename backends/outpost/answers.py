"""What an outpost answers: its first words, the replies to one request, why it failed.

The peer may be hostile: what makes no sense is a FrameError, and nothing grows beyond its limit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass

import anyio

from hermes_rl.backends.outpost.frames import (
    PROTOCOL_VERSION,
    FrameError,
    Kind,
    to_text,
    unpack_fields,
)
from hermes_rl.errors import SandboxError

__all__ = [
    "SMALL_PIECE_BYTES",
    "Failure",
    "Hello",
    "HelloWaiter",
    "Reply",
    "Waiter",
    "add_piece",
    "number_in",
]

SMALL_PIECE_BYTES = 8 * 1024
MAX_FAILURE_BYTES = 8 * 1024
"""Kept of a failure's text: the name of a file, which the kernel ends at 4096 bytes, and words."""


@dataclass(slots=True, frozen=True)
class Hello:
    """What an outpost says about itself and its sandbox when it starts."""

    variant: str
    pid: int
    uid: int
    shell: str
    """``bash``, ``sh`` or "" where the image has none."""
    cwd: str
    home: str
    adopts: bool
    """Orphaned processes become its children, so that none escapes a kill."""

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """Read the payload of a HELLO frame."""
        fields = unpack_fields(payload)
        try:
            if int(fields["version"]) != PROTOCOL_VERSION:
                raise FrameError(
                    f"the outpost speaks version {fields['version']!r} of the protocol"
                )
            return cls(
                variant=to_text(fields["variant"]),
                pid=int(fields["pid"]),
                uid=int(fields["uid"]),
                shell=to_text(fields["shell"]),
                cwd=to_text(fields["cwd"]),
                home=to_text(fields["home"]),
                adopts=fields["adopts"] == b"1",
            )
        except KeyError as error:
            raise FrameError(f"hello without {error}") from None


class Waiter:
    """Receives the replies to one request; ``done`` is set at the last one or at loss."""

    def __init__(self) -> None:
        self.id = 0
        self.done = anyio.Event()
        self.error: SandboxError | None = None

    def received(self, kind: int, payload: bytes) -> None:
        """Take one reply frame; raises FrameError if it makes no sense here."""
        raise FrameError(f"unexpected {Kind(kind).name}")

    def lost(self, error: SandboxError) -> None:
        """The channel is gone."""
        if not self.done.is_set():
            self.error = error
            self.done.set()

    def check(self) -> None:
        """Raise the loss, if there was one; each caller gets an instance of its own."""
        if self.error is not None:
            raise copy.copy(self.error)


@dataclass(slots=True, frozen=True)
class Failure:
    """Why the outpost did not do what it was asked for.

    Attributes:
        number: An errno, or the exit code that a shell would have given.
        text: The reason in words.
        reason: What kind: ``errno``, ``start`` or ``user``.
    """

    number: int
    text: str
    reason: str

    @classmethod
    def parse(cls, payload: bytes) -> Failure:
        """Read the payload of a FAILED frame."""
        fields = unpack_fields(payload)
        return cls(
            number=number_in(fields, "errno", 0),
            text=to_text(fields.get("text", b"failed")[:MAX_FAILURE_BYTES]),
            reason=to_text(fields.get("reason", b"")),
        )


def number_in(fields: Mapping[str, bytes], name: str, default: int | None = None) -> int:
    """Return a number that the peer sent.

    Raises:
        KeyError: It is not there and has no default.
        FrameError: It is none, or larger than a log of the run can hold.
    """
    value = int(fields[name]) if default is None or name in fields else default
    if not 0 <= value < 1 << 63:
        raise FrameError(f"{name} is out of range")
    return value


def add_piece(pieces: MutableSequence[bytes], data: bytes) -> None:
    """Append data that came; small pieces become one, or the list outgrows what it holds."""
    if pieces and len(pieces[-1]) + len(data) <= SMALL_PIECE_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)


class Reply(Waiter):
    """Collects the chunks of one answer, at most ``limit_bytes`` of them.

    Where one frame ends and the next begins means nothing.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        super().__init__()
        self.chunks: list[bytes] = []
        self.failure: Failure | None = None
        self._room = limit_bytes

    def received(self, kind: int, payload: bytes) -> None:
        """Take one reply frame."""
        if kind == Kind.CHUNK:
            self._room -= len(payload)
            if self._room < 0:
                raise FrameError("more data than was asked for")
            add_piece(self.chunks, payload)
        elif kind in (Kind.DONE, Kind.PONG):
            self.done.set()
        elif kind == Kind.FAILED:
            self.failure = Failure.parse(payload)
            self.done.set()
        else:
            super().received(kind, payload)


class HelloWaiter(Waiter):
    """Receives what an outpost says first."""

    hello: Hello | None = None

    def received(self, kind: int, payload: bytes) -> None:
        """Take the one frame."""
        if kind != Kind.HELLO or self.hello is not None:
            super().received(kind, payload)
        self.hello = Hello.parse(payload)
        self.done.set()
