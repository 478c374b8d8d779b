"""What the tools of one rollout share: the sandbox, its shell session, settings and small state.

Nothing here outlives a rollout and nothing is shared between rollouts.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes_rl.sandbox import DEFAULT_MAX_OUTPUT_BYTES, DirEntry, ExecResult, Sandbox
from hermes_rl.tools.processes import ProcessTable
from hermes_rl.types import JSONObject

__all__ = ["Shell", "ToolScope", "ToolSettings"]

LOCATE_TIMEOUT_S = 30.0
"""For the one command that asks a fresh session where it is."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ToolSettings:
    """Limits of one rollout's tools.

    Attributes:
        command_timeout_s: Deadline of a foreground command that names none.
        max_command_timeout_s: Longest deadline the model may ask for.
        call_timeout_s: Deadline of a call of a tool that sets none itself.
        max_output_chars: Characters of command output shown (head 40 %, tail 60 %).
        max_result_chars: A longer result is saved in the sandbox and shown in part.
        max_turn_chars: The same for all results of one turn together.
        max_processes: Background processes kept per rollout, running or ended.
        user: User of the agent's commands and file operations; None = the sandbox's.
    """

    command_timeout_s: float = 120.0
    max_command_timeout_s: float = 600.0
    call_timeout_s: float = 300.0
    max_output_chars: int = 50_000
    max_result_chars: int = 100_000
    max_turn_chars: int = 200_000
    max_processes: int = 32
    user: str | None = None


class Shell:
    """One shell session of a sandbox and where it stands.

    Args:
        sandbox: Runs the commands.
        session: Name of the session.
        user: User of the commands; None = the sandbox's.
        start_cwd: Directory to enter before the first command; None = the sandbox's own. One
            that no longer exists is ignored.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        session: str = "agent",
        *,
        user: str | None = None,
        start_cwd: str | None = None,
    ) -> None:
        self.session = session
        self.user = user
        self.cwd: str | None = start_cwd
        self._sandbox = sandbox
        self._start_cwd = start_cwd
        self._home: str | None = None

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command in the session, stderr merged, and note where it left the session."""
        await self._enter()
        return await self._exec(
            command, timeout_s=timeout_s, cwd=cwd, env=env, max_output_bytes=max_output_bytes
        )

    async def directory(self) -> str:
        """Return the session's working directory, asking the sandbox at most once."""
        if self.cwd is None:
            await self._locate()
        return self.cwd or "."

    async def resolve(self, path: str) -> str:
        """Return ``path`` as the session would see it: absolute, ``~`` expanded."""
        if path == "~" or path.startswith("~/"):
            if self._home is None:
                await self._locate()
            path = (self._home or "~") + path[1:]
        if not path.startswith("/"):
            path = posixpath.join(await self.directory(), path)
        # Collapsing ".." would be wrong behind a symbolic link; the kernel resolves it.
        return path if ".." in path.split("/") else posixpath.normpath(path)

    async def entered(self) -> str:
        """Make sure that the session exists and return its name."""
        await self._enter()
        return self.session

    async def _enter(self) -> None:
        if self._start_cwd is None:
            return
        start_cwd, self._start_cwd = self._start_cwd, None
        await self._exec(f"cd -- {shlex.quote(start_cwd)}", timeout_s=LOCATE_TIMEOUT_S)

    async def _exec(
        self,
        command: str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        result = await self._sandbox.exec(
            command,
            timeout_s=timeout_s,
            session=self.session,
            cwd=cwd,
            env=env,
            user=self.user,
            max_output_bytes=max_output_bytes,
            merge_stderr=True,
        )
        self.cwd = result.cwd or self.cwd
        return result

    async def _locate(self) -> None:
        await self._enter()
        result = await self._exec(
            'printf \'%s\\n%s\\n\' "$PWD" "$HOME"', timeout_s=LOCATE_TIMEOUT_S
        )
        directory, _, home = result.text.partition("\n")
        self.cwd = result.cwd or directory or None
        self._home = home.strip("\n") or None


@dataclass(slots=True, frozen=True, kw_only=True)
class ToolScope:
    """What a tool's handler works with. One per rollout; ``call_id`` is this call's.

    Attributes:
        sandbox: The rollout's sandbox.
        shell: The session commands run in.
        processes: Background processes.
        settings: Limits.
        guard_host: The sandbox does not isolate: refuse to touch the host's system paths.
        todos: The task list of the ``todo`` tool.
        patch_failures: Failed patches in a row, by path.
        call_id: Id of this call.
    """

    sandbox: Sandbox
    shell: Shell
    processes: ProcessTable
    settings: ToolSettings = ToolSettings()
    guard_host: bool = False
    todos: list[JSONObject] = field(default_factory=list)
    patch_failures: dict[str, int] = field(default_factory=dict)
    call_id: str = ""

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """Read a file with the rights of the agent's user."""
        return await self.sandbox.read(path, max_bytes=max_bytes, user=self.shell.user)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file as the agent's user."""
        await self.sandbox.write(path, data, user=self.shell.user)

    async def list(self, path: str) -> Sequence[DirEntry]:
        """List a directory with the rights of the agent's user."""
        return await self.sandbox.list(path, user=self.shell.user)

    async def run_stateless(
        self, command: str | Sequence[str], *, timeout_s: float, max_output_bytes: int
    ) -> ExecResult:
        """Run a command of ours: no session state, but in the session's directory."""
        return await self.sandbox.exec(
            command,
            timeout_s=timeout_s,
            session=None,
            cwd=await self.shell.directory(),
            user=self.shell.user,
            max_output_bytes=max_output_bytes,
        )
