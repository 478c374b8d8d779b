"""Everything that goes wrong in one run of ``serve``, and the account of its groups at the end."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from .free_port import free_port
from .serve_process import ServeProcess, serving_process
from .trajectory_server import Trainer, TrajectoryServer, trajectory_server

HERE = Path(__file__).parent
GROUP_SIZE = 2
STEP_LIMIT_S = 60.0
PULL_S = 0.05


class ModelProcess:
    """A model server that is killed and started again on its port."""

    def __init__(self) -> None:
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, HERE / "chaos_model.py", str(self._port)])
        with anyio.fail_after(STEP_LIMIT_S):
            while socket.socket().connect_ex(("127.0.0.1", self._port)):
                await anyio.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None


@dataclass(slots=True, frozen=True)
class Durations:
    """How long each disturbance lasts, in seconds."""

    model_away_s: float
    queue_full_s: float
    api_away_s: float


class Run:
    """One run, its trainer and the account of both."""

    def __init__(
        self, folder: Path, server: TrajectoryServer, trainer: Trainer, serve: ServeProcess
    ) -> None:
        self.server = server
        self.trainer = trainer
        self.serve = serve
        self._folder = folder

    def lines(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    def received(self) -> Counter[str]:
        """Count the items of the groups that the trainer got."""
        groups = [group for batch in self.trainer.batches for group in batch]
        assert all(len(group["scores"]) == GROUP_SIZE for group in groups)
        return Counter(group["messages"][0][0]["content"] for group in groups)

    async def train(self, *, until: Callable[[], bool]) -> None:
        with anyio.move_on_after(STEP_LIMIT_S):
            while not until():
                assert self.serve.is_running, self.serve.output[-4000:]
                await self.trainer.pull()
                await anyio.sleep(PULL_S)
        assert until(), f"not in {STEP_LIMIT_S:g} s:\n{self.serve.output[-4000:]}"

    async def train_more(self, batches: int) -> None:
        wanted = len(self.trainer.batches) + batches
        await self.train(until=lambda: len(self.trainer.batches) >= wanted)

    async def drain(self) -> None:
        while await self.trainer.pull() is not None:
            pass


async def disturb(run: Run, model: ModelProcess, durations: Durations) -> None:
    """Let everything go wrong in turn; the trainer goes on between."""
    # While it trains, every tenth reward raises and each fifth step begins an evaluation.
    await run.train(until=lambda: len(run.lines("evaluations.txt")) >= 2)
    await wait_for_a_full_queue(run)
    held = len(run.lines("finished.txt"))
    await anyio.sleep(durations.queue_full_s)
    assert len(run.lines("finished.txt")) == held, "a full queue must pause admission"
    # The queue is lost with the API: it must be sent again.
    run.server.kill()
    await anyio.sleep(durations.api_away_s)
    await run.server.start()
    await run.trainer.register()
    await run.train_more(4)
    model.kill()
    await anyio.sleep(durations.model_away_s)
    await model.start()
    await run.train_more(6)


async def wait_for_a_full_queue(run: Run) -> None:
    """Stop pulling until no more groups come."""
    count, quiet = -1, 0
    with anyio.fail_after(STEP_LIMIT_S):
        while quiet < 6:
            await anyio.sleep(0.25)
            now = len(run.lines("finished.txt"))
            quiet = quiet + 1 if now == count else 0
            count = now


@contextlib.contextmanager
def killed_at_the_end(model: ModelProcess) -> Iterator[ModelProcess]:
    try:
        yield model
    finally:
        model.kill()


async def check_a_disturbed_run(folder: Path, durations: Durations) -> str:
    """Disturb a run, end it by SIGTERM, and settle the account; returns its last line."""
    with killed_at_the_end(ModelProcess()) as model:
        await model.start()
        async with trajectory_server(folder) as server:
            trainer = Trainer(server.url, batch_size=GROUP_SIZE)
            await trainer.register()
            words = (
                *(str(HERE / "chaos_env.py"), "--env.rollout_server_url", server.url),
                *("--openai.base_url", model.base_url, "--openai.api_key", "x"),
                *("--env.enabled_toolsets", "terminal", "--env.max_num_workers", "3"),
                *("--env.group_size", str(GROUP_SIZE), "--env.total_steps", "100000"),
                *("--env.ensure_scores_are_not_same", "false", "--env.include_messages", "true"),
                *("--env.steps_per_eval", "5", "--env.resend_on_restart", "true"),
            )
            async with serving_process(folder, *words) as serve:
                run = Run(folder, server, trainer, serve)
                await disturb(run, model, durations)
                serve.terminate()
                code = await serve.end(20)
            await run.drain()
            await trainer.aclose()
    settle(run, code)
    return serve.output.splitlines()[-1]


def settle(run: Run, code: int) -> None:
    output = run.serve.output
    assert code == 143, output[-4000:]
    assert run.serve.left_files() == []
    finished, received = run.lines("finished.txt"), run.received()
    assert sorted(set(finished) - received.keys()) == [], "groups are lost"
    assert received.keys() <= set(finished)
    twice = sum(count - 1 for count in received.values()) - (len(finished) - len(set(finished)))
    counted = run.serve.counter("possible duplicates") + run.serve.counter("resent")
    assert 0 <= twice <= counted, output.splitlines()[-1]
    assert run.serve.counter("given_up") == run.serve.counter("unsent") == 0
    assert run.serve.counter("registrations") == 2
    begun = [line for line in run.lines("evaluations.txt") if line.startswith("begins")]
    assert len(begun) > 1
    assert "every tenth reward raises" in output
