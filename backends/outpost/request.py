"""What an outpost is asked to run, and how that is written on the wire."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hermes_rl.backends.outpost.channel import OutpostChannel
from hermes_rl.backends.outpost.frames import Kind, pack_fields, pack_list, to_bytes

__all__ = ["INLINE_STDIN_BYTES", "OUTPUT_WINDOW_BYTES", "RunRequest"]

INLINE_STDIN_BYTES = 64 * 1024
"""Standard input that goes with the request; the rest follows it."""
OUTPUT_WINDOW_BYTES = 256 * 1024
"""Unread output of a stream held here; beyond it the command blocks."""
RUN_PIECE_BYTES = 512 * 1024
LONGEST_S = 14 * 86400.0
"""Longest deadline; with more the kernel's timers in milliseconds would overflow."""
TERMINAL_SIZE = (120, 40)
"""Columns and rows of a new pseudo-terminal."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RunRequest:
    """What is to be run; see :meth:`hermes_rl.sandbox.Sandbox.exec`."""

    cmd: str | Sequence[str]
    output: Literal["keep", "flow", "tail"] = "keep"
    limit_bytes: int = 0
    timeout_s: float | None = None
    session: str | None = None
    saves_session: bool = False
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bytes | None = None
    keeps_stdin_open: bool = False
    merge_stderr: bool = False
    pty: bool = False

    def __post_init__(self) -> None:
        """Bound the deadline.

        Raises:
            ValueError: It is no number.
        """
        if self.timeout_s is None:
            return
        if math.isnan(self.timeout_s):
            raise ValueError("timeout_s is NaN: give seconds, or math.inf for no deadline.")
        object.__setattr__(self, "timeout_s", min(self.timeout_s, LONGEST_S))

    def fields(self) -> dict[str, bytes | str | int]:
        """Return the wire form."""
        fields: dict[str, bytes | str | int] = {"output": self.output, "limit": self.limit_bytes}
        if self.output == "flow":
            fields["window"] = OUTPUT_WINDOW_BYTES
        if self.timeout_s is not None:
            fields["timeout_ms"] = max(1, round(self.timeout_s * 1000))
        if self.session is not None:
            fields["session"] = self.session
        if self.saves_session:
            fields["save"] = 1
        if self.cwd is not None:
            fields["cwd"] = self.cwd
        if self.user is not None:
            fields["user"] = self.user
        if self.env:
            fields["env"] = pack_list(
                [to_bytes(f"{name}={value}") for name, value in self.env.items()]
            )
        if self.stdin:
            fields["stdin"] = self.stdin[:INLINE_STDIN_BYTES]
        if self.keeps_stdin_open or len(self.stdin or b"") > INLINE_STDIN_BYTES:
            fields["stdin_open"] = 1
        if self.merge_stderr or self.output == "tail":
            fields["merge"] = 1
        if self.pty:
            fields["pty"] = struct.pack(">HH", *TERMINAL_SIZE)
        # Last, so that a command of any size can follow in pieces.
        if isinstance(self.cmd, str):
            fields["cmd"] = self.cmd
        else:
            fields["argv"] = pack_list([to_bytes(item) for item in self.cmd])
        return fields

    async def send(self, channel: OutpostChannel, id: int) -> None:
        """Send the request, in pieces if it is large."""
        payload = pack_fields(self.fields())
        if len(payload) <= RUN_PIECE_BYTES:
            await channel.send(Kind.RUN, id, payload)
            return
        await channel.send(Kind.RUN, id, pack_fields({"more": 1}))
        await channel.send_pieces(id, payload, piece_bytes=RUN_PIECE_BYTES)
