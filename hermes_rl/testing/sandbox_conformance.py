"""Behaviours every sandbox must show; run by each backend's tests and by plug-in authors.

Subclass :class:`SandboxConformance` in a test module and give it an async fixture ``sandbox``
that yields a running :class:`~hermes_rl.sandbox.Sandbox`::

    class TestMine(SandboxConformance):
        @pytest_asyncio.fixture
        async def sandbox(self): ...
"""

from __future__ import annotations

import pytest

from hermes_rl.errors import SandboxFileNotFound
from hermes_rl.sandbox import Sandbox

__all__ = ["SandboxConformance"]


class SandboxConformance:
    """The suite; every method is one behaviour."""

    async def test_exit_code_is_a_result(self, sandbox: Sandbox) -> None:
        """A non-zero exit is returned, not raised."""
        assert (await sandbox.exec("exit 3", timeout_s=10)).exit_code == 3

    async def test_output_is_exact(self, sandbox: Sandbox) -> None:
        """Standard output and error arrive apart and unchanged."""
        result = await sandbox.exec("printf out; printf err >&2", timeout_s=10)
        assert (result.stdout, result.stderr) == (b"out", b"err")

    async def test_timeout_is_a_result_with_partial_output(self, sandbox: Sandbox) -> None:
        """A command that meets its deadline returns what it had printed."""
        result = await sandbox.exec("echo first; sleep 60", timeout_s=0.5)
        assert result.timed_out
        assert result.exit_code == 124
        assert result.stdout == b"first\n"

    async def test_files_are_binary_safe(self, sandbox: Sandbox) -> None:
        """Every byte value survives a write and a read."""
        data = bytes(range(256)) * 17
        await sandbox.write("blob", data)
        assert await sandbox.read("blob", max_bytes=len(data)) == data

    async def test_missing_file_is_a_typed_error(self, sandbox: Sandbox) -> None:
        """Reading what is not there raises SandboxFileNotFound."""
        with pytest.raises(SandboxFileNotFound):
            await sandbox.read("no-such-file", max_bytes=10)
