"""A real ``run-api`` process on loopback, and a trainer that pulls from it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx

from .free_port import free_port

RUN_API = Path(sys.executable).with_name("run-api")


class TrajectoryServer:
    """``run-api`` that can be killed and started again on the same port."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [RUN_API, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        async with httpx.AsyncClient() as client:
            for _ in range(300):
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url}/")).status_code == 200:
                        return
                await anyio.sleep(0.1)
        raise RuntimeError(f"run-api did not start: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=10)
            self._process = None


class Trainer:
    """Registers as a trainer and pulls batches."""

    def __init__(self, url: str, *, batch_size: int, max_token_len: int = 4096) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self._client = httpx.AsyncClient(base_url=url, timeout=30)
        self._batch_size = batch_size
        self._max_token_len = max_token_len

    async def register(self, *, num_steps: int = 100) -> None:
        body = {
            "wandb_group": "g",
            "wandb_project": "p",
            "batch_size": self._batch_size,
            "max_token_len": self._max_token_len,
            "checkpoint_dir": "",
            "save_checkpoint_interval": -1,
            "starting_step": 0,
            "num_steps": num_steps,
        }
        (await self._client.post("/register", json=body)).raise_for_status()
        await self.pull()

    async def pull(self) -> list[dict[str, Any]] | None:
        answer = (await self._client.get("/batch")).json()
        batch: list[dict[str, Any]] | None = answer["batch"] or None
        if batch is not None:
            self.batches.append(batch)
        return batch

    async def aclose(self) -> None:
        await self._client.aclose()


@contextlib.asynccontextmanager
async def trajectory_server(folder: Path) -> AsyncIterator[TrajectoryServer]:
    server = TrajectoryServer(folder / "run-api.log")
    try:
        await server.start()
        yield server
    finally:
        server.kill()
