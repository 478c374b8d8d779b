"""Fixtures and small tools of the conformance suite."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import anyio
import pytest
import pytest_asyncio

from hermes_rl.errors import SandboxGone
from hermes_rl.sandbox import Backend, Capability, ExecResult, Sandbox, SandboxSpec
from hermes_rl.testing.hosting import hosted

__all__ = ["ConformanceBase", "alive", "eventually", "needs", "sh", "unique"]

Test = TypeVar("Test", bound=Callable[..., object])

QUICK_S = 60.0
"""Deadline of commands that take no time; only a broken sandbox ever meets it."""


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Mark a behaviour that is only asked of sandboxes with these capabilities."""

    def mark(test: Test) -> Test:
        vars(test)["needed"] = frozenset(capabilities)
        return test

    return mark


def unique(stem: str = "x") -> str:
    """Return a name that no other behaviour uses in the same sandbox."""
    return f"{stem}-{uuid.uuid4().hex[:8]}"


async def sh(sandbox: Sandbox, cmd: str | Sequence[str], **options: Any) -> ExecResult:
    """Run a command outside any session, with a deadline that is not the point of the test."""
    options.setdefault("session", None)
    options.setdefault("timeout_s", QUICK_S)
    return await sandbox.exec(cmd, **options)


async def alive(sandbox: Sandbox, marker: str) -> int:
    """Count the processes in the sandbox whose arguments contain ``marker``."""
    script = (
        "n=0; for f in /proc/[0-9]*/cmdline; do "
        'case "$(tr "\\0" " " <$f 2>/dev/null)" in *HERE*) ;; *"$MARKER"*) n=$((n+1));; esac; '
        "done; echo $n # HERE"
    )
    result = await sh(sandbox, script, env={"MARKER": marker})
    return int(result.stdout)


async def eventually(check: Callable[[], Any], *, timeout_s: float = 30.0) -> None:
    """Wait until the awaitable that ``check`` returns is true; fail after ``timeout_s``."""
    with anyio.fail_after(timeout_s):
        while True:
            if await check():
                return
            await anyio.sleep(0.02)


class ConformanceBase:
    """What every group of behaviours shares. Give the class one fixture, ``unopened_backend``.

    Attributes:
        spec: What the sandboxes are made from.
        python: Arguments that start a Python >= 3.8 inside the sandbox; behaviours that need no
            shell use it, so that they also run in an image that holds nothing else.
    """

    pytestmark = pytest.mark.asyncio(loop_scope="class")
    spec = SandboxSpec()
    python: Sequence[str] = ("python3",)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls) -> Backend:
        """Return the backend under test, not yet entered. Override this."""
        pytest.fail("give the test class a class-scoped fixture 'unopened_backend'")

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def backend(cls, unopened_backend: Backend) -> AsyncIterator[Backend]:
        """Enter the backend for all behaviours of the class; leaving it closes what is left."""
        async with hosted(unopened_backend) as backend:
            yield backend
            left = await backend.create(cls.spec)
        with anyio.move_on_after(QUICK_S):
            try:
                await left.ping()
            except SandboxGone:
                return
        pytest.fail("leaving a backend must close the sandboxes that it made")

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def shared(cls, backend: Backend) -> AsyncIterator[list[Sandbox]]:
        """Hold the sandbox for behaviours that leave it as it was."""
        boxes: list[Sandbox] = []
        yield boxes
        for box in boxes:
            await box.close()

    @pytest_asyncio.fixture(loop_scope="class")
    async def sandbox(self, backend: Backend, shared: list[Sandbox]) -> Sandbox:
        """Return a running sandbox; other behaviours use it too, each in its own session."""
        if not shared:
            shared.append(await backend.create(self.spec))
        return shared[0]

    @pytest_asyncio.fixture(loop_scope="class")
    async def fresh(self, backend: Backend) -> AsyncIterator[Sandbox]:
        """Return a sandbox of the test's own."""
        box = await backend.create(self.spec)
        yield box
        await box.close()

    @pytest_asyncio.fixture(autouse=True, loop_scope="class")
    async def capability_check(self, request: pytest.FixtureRequest, sandbox: Sandbox) -> None:
        """Skip what the sandbox does not claim to do."""
        needed: frozenset[Capability] = getattr(request.function, "needed", frozenset())
        missing = needed - sandbox.capabilities
        if missing:
            pytest.skip(f"not declared: {', '.join(sorted(missing))}")

    def script(self, code: str, *arguments: str) -> list[str]:
        """Return the arguments that run a Python program in the sandbox."""
        return [*self.python, "-c", code, *arguments]
