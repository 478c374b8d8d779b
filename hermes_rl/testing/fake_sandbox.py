"""An in-memory sandbox: files in a dictionary, commands answered by a function you give."""

from __future__ import annotations

import inspect
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from hermes_rl.errors import (
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxGone,
    SandboxIsADirectory,
    Unsupported,
)
from hermes_rl.sandbox import (
    DEFAULT_MAX_OUTPUT_BYTES,
    BackendLimits,
    Capability,
    Change,
    Check,
    DirEntry,
    ExecResult,
    Process,
    SandboxSpec,
)

__all__ = ["FakeBackend", "FakeSandbox"]

Handler = Callable[[str | Sequence[str]], ExecResult | Awaitable[ExecResult]]
"""Answers a command; may be async, may raise what a real sandbox may raise."""


def _succeed(_: str | Sequence[str]) -> ExecResult:
    return ExecResult(exit_code=0)


class FakeSandbox:
    """A :class:`~hermes_rl.sandbox.Sandbox` without processes, for tests above the sandbox."""

    def __init__(self, *, id: str = "fake", run: Handler = _succeed, home: str = "/root") -> None:
        self.id = id
        self.capabilities: frozenset[Capability] = frozenset()
        self.files: dict[str, bytes] = {}
        self.commands: list[str | Sequence[str]] = []
        self.closed = 0
        self.killed = 0
        self._run = run
        self._home = home

    def _path(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = self._home + path[1:]
        return posixpath.normpath(posixpath.join(self._home, path))

    def _alive(self) -> None:
        if self.closed:
            raise SandboxGone("The fake sandbox is closed.", cause="removed", sandbox_id=self.id)

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        timeout_s: float,
        session: str | None = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        merge_stderr: bool = False,
        trusted: bool = False,
    ) -> ExecResult:
        """Record the command and return what the handler says."""
        self._alive()
        await anyio.lowlevel.checkpoint()
        self.commands.append(cmd)
        answer = self._run(cmd)
        return await answer if inspect.isawaitable(answer) else answer

    def stream(
        self, cmd: str | Sequence[str], **options: object
    ) -> AbstractAsyncContextManager[Process]:
        """Refuse: a fake has no processes."""
        raise Unsupported("The fake sandbox runs no processes.", capability="stream")

    async def read(
        self,
        path: str,
        *,
        max_bytes: int,
        offset: int = 0,
        trusted: bool = False,
        user: str | None = None,
    ) -> bytes:
        """Return a file's bytes."""
        self._alive()
        await anyio.lowlevel.checkpoint()
        full = self._path(path)
        if full not in self.files:
            if any(name.startswith(full + "/") for name in self.files):
                raise SandboxIsADirectory(f"{path} is a directory.", path=path)
            raise SandboxFileNotFound(f"{path} does not exist.", path=path)
        data = self.files[full][offset:]
        if len(data) > max_bytes:
            raise SandboxFileTooLarge(f"{path} exceeds {max_bytes} bytes.", path=path)
        return data

    async def write(
        self, path: str, data: bytes, *, mode: int | None = None, user: str | None = None
    ) -> None:
        """Store a file."""
        self._alive()
        await anyio.lowlevel.checkpoint()
        full = self._path(path)
        if any(name.startswith(full + "/") for name in self.files):
            raise SandboxIsADirectory(f"{path} is a directory.", path=path)
        self.files[full] = data

    async def list(self, path: str, *, user: str | None = None) -> list[DirEntry]:
        """List the files directly below ``path``."""
        self._alive()
        await anyio.lowlevel.checkpoint()
        prefix = self._path(path).rstrip("/") + "/"
        return [
            DirEntry(name.removeprefix(prefix), "file", len(data), 0.0, 0o644)
            for name, data in sorted(self.files.items())
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        ]

    async def upload(self, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy a local file or directory into the dictionary."""
        self._alive()
        source = anyio.Path(local)
        if await source.is_file():
            await self.write(remote, await source.read_bytes())
            return
        async for file in source.rglob("*"):
            if await file.is_file():
                await self.write(f"{remote}/{file.relative_to(local)}", await file.read_bytes())

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, user: str | None = None
    ) -> None:
        """Copy one file out."""
        await anyio.Path(local).write_bytes(await self.read(remote, max_bytes=max_bytes))

    async def kill_all(self) -> None:
        """Count it: there are no processes."""
        self._alive()
        self.killed += 1

    def pause(self) -> AbstractAsyncContextManager[None]:
        """Refuse: a fake has no processes to freeze."""
        raise Unsupported("The fake sandbox cannot pause.", capability=Capability.PAUSE)

    async def ping(self, *, timeout_s: float = 5.0) -> float:
        """Answer at once."""
        self._alive()
        return 0.0

    async def changes(self, *, suspects: str = "") -> Sequence[Change]:
        """Refuse: a fake has no image."""
        raise Unsupported("The fake sandbox has no image.", capability=Capability.CHANGES)

    async def close(self) -> None:
        """Count the close."""
        await anyio.lowlevel.checkpoint()
        self.closed += 1


class FakeBackend:
    """Hands out :class:`FakeSandbox` objects and remembers them in ``created``.

    Args:
        make: Makes a sandbox; may be async, may raise what a real backend may raise.
    """

    name = "fake"
    limits = BackendLimits()

    def __init__(
        self,
        make: Callable[[SandboxSpec], FakeSandbox | Awaitable[FakeSandbox]] | None = None,
    ) -> None:
        self.capabilities: frozenset[Capability] = frozenset()
        self.created: list[FakeSandbox] = []
        self.specs: list[SandboxSpec] = []
        self._make = make or (lambda spec: FakeSandbox(id=f"fake-{len(self.created)}"))

    async def __aenter__(self) -> Self:
        """Do nothing."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what is left."""
        for sandbox in self.created:
            if not sandbox.closed:
                await sandbox.close()

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """Make a sandbox."""
        await anyio.lowlevel.checkpoint()
        self.specs.append(spec)
        made = self._make(spec)
        sandbox = await made if inspect.isawaitable(made) else made
        self.created.append(sandbox)
        return sandbox

    @property
    def alive(self) -> list[FakeSandbox]:
        """Sandboxes that were not closed."""
        return [sandbox for sandbox in self.created if not sandbox.closed]

    async def sweep(self) -> Sequence[str]:
        """Find nothing."""
        return []

    async def doctor(self) -> Sequence[Check]:
        """Be well."""
        return [Check("fake", ok=True)]
