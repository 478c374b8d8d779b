"""Other engines' Docker sandboxes as processes that run commands when told.

HERMES_PEERS lists virtual environments (``:`` between them) that have the engines; each runs with
the first that has its package. ``docker compose`` must be there for those that call it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.streams.buffered import BufferedByteReceiveStream

__all__ = ["Engine", "other_engines"]

PROGRAMS = {
    "mini-swe-agent": ("minisweagent", "mini_swe_agent.py"),
    "SWE-ReX": ("swerex", "swe_rex.py"),
    "inspect_ai": ("inspect_ai", "inspect_ai_sandbox.py"),
    "Harbor": ("harbor", "harbor_docker.py"),
}
START_S = 180.0
ROUND_S = 120.0
MAX_LINE_BYTES = 1 << 20


@dataclass(slots=True)
class Engine:
    """One engine with one sandbox; ``missing`` says why there is none."""

    name: str
    missing: str = ""
    start_ms: float = 0.0
    times_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    _process: anyio.abc.Process | None = None
    _answers: BufferedByteReceiveStream | None = None

    async def run(self, count: int) -> None:
        """Run so many commands one after the other and keep what they took."""
        assert self._process is not None
        assert self._process.stdin is not None
        await self._process.stdin.send(b"%d\n" % count)
        answer = await self._answer(ROUND_S)
        self.times_ms += answer["times_ms"]
        self.cpu_s += answer["cpu_s"]

    async def _answer(self, limit_s: float) -> Any:
        assert self._answers is not None
        with anyio.fail_after(limit_s):
            return orjson.loads(await self._answers.receive_until(b"\n", MAX_LINE_BYTES))


@asynccontextmanager
async def other_engines() -> AsyncIterator[list[Engine]]:
    """Every engine we compare with, started where it can be."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_started(name)) for name in PROGRAMS]


@asynccontextmanager
async def _started(name: str) -> AsyncIterator[Engine]:
    package, program = PROGRAMS[name]
    python = _interpreter(package)
    if python is None:
        yield Engine(name, f"not installed in HERMES_PEERS={os.environ.get('HERMES_PEERS', '')}")
        return
    path = Path(__file__).with_name("peers") / program
    with tempfile.TemporaryFile() as errors:
        process = await anyio.open_process([python, "-W", "ignore", str(path)], stderr=errors)
        assert process.stdin is not None
        assert process.stdout is not None
        engine = Engine(name, _process=process, _answers=BufferedByteReceiveStream(process.stdout))
        try:
            try:
                hello = await engine._answer(START_S)
            except (anyio.IncompleteRead, TimeoutError):
                errors.seek(0)
                said = errors.read().decode(errors="replace").split("\n")
                engine.missing = next(
                    (line for line in reversed(said) if line.strip()), "no reason"
                )
            else:
                engine.name, engine.start_ms = f"{name} {hello['version']}", hello["start_ms"]
            yield engine
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(ROUND_S):
                await process.stdin.aclose()
                await process.wait()
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()


def _interpreter(package: str) -> str | None:
    for folder in filter(None, os.environ.get("HERMES_PEERS", "").split(":")):
        python = f"{folder}/bin/python"
        words = [python, "-c", f"import importlib.util as u; assert u.find_spec('{package}')"]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return python
    return None
