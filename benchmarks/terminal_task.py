"""A task in Terminal-Bench layout, wherever it was read from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_rl.benchmarks.verification import Verifier
from hermes_rl.sandbox import Capability, SandboxSpec
from hermes_rl.tasks import Deadlines, Solution
from hermes_rl.types import AgentResult, Reward

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["NEEDS", "TerminalTask", "content_digest"]

NEEDS = frozenset({Capability.ISOLATION})
"""Tests write to /tests and /logs: never on a host that isolates nothing."""
_PIECE_BYTES = 1 << 20


@dataclass(slots=True, frozen=True, kw_only=True)
class TerminalTask:
    """One task, read and checked.

    Attributes:
        id: Its name.
        prompt: Its instruction, verbatim.
        sandbox: Its image and limits.
        setup_s: Seconds until its sandbox is ready, image work excluded; None = the default.
        agent_s: Seconds for the agent; None = the configuration's.
        metadata: What it says of itself, and its ``digest``.
        solution: Its own solution, if it has one.
        agent_user: User of the agent's commands; None = the sandbox's.
        verifier: Its tests.
    """

    id: str
    prompt: str
    sandbox: SandboxSpec
    setup_s: float | None
    agent_s: float | None
    metadata: Mapping[str, Any]
    verifier: Verifier
    solution: Solution | None = None
    agent_user: str | None = None

    @property
    def deadlines(self) -> Deadlines:
        """Its limits. ``test_timeout`` caps the tests alone, not what surrounds them."""
        return Deadlines(
            setup_s=self.setup_s,
            agent_s=self.agent_s,
            reward_s=self.verifier.timeout_s,
            reward_margin_s=self.verifier.margin_s,
        )

    async def reward(self, result: AgentResult, ctx: ToolContext) -> Reward:
        """Run the verifier in the agent's sandbox."""
        return await self.verifier.run(ctx)


def content_digest(folder: Path) -> str:
    """Return the SHA-256 of a directory: names, executable bits, links and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        if path.is_symlink():
            target = os.fsencode(os.readlink(path))
            digest.update(b"link\0%s\0%d\0%s" % (name, len(target), target))
        elif path.is_file():
            kind = b"exec" if os.access(path, os.X_OK) else b"file"
            digest.update(b"%s\0%s\0%d\0" % (kind, name, path.stat().st_size))
            with path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
    return digest.hexdigest()
