"""Nothing of a worker outlives the engine, however either of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .hermes_world import MARK, PUBLIC, environment, hermes_home, parent, processes, services

pytestmark = pytest.mark.timeout(600)  # The first test of a host builds an environment.

HANGING = """
import os, subprocess, sys, time
from pathlib import Path
from hermes_rl.legacy.in_worker.keeper import keep

def work(directory):
    # A browser: in a session of its own, orphaned by the shell that started it.
    command = "sleep 86396 </dev/null >/dev/null 2>&1 & exit"
    subprocess.run(["setsid", "sh", "-c", command], check=True)
    (directory / "log").write_text("the last words")
    os.write(1, f"{directory}\\n".encode())
    if sys.argv[1] == "die":
        os._exit(7)
    while True:
        time.sleep(60)

keep(work)
"""
GRANDCHILD = "86396"

ENGINE = """
import sys
import anyio
from hermes_rl.legacy.pool import LegacyTools
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.tools import ToolDispatcher

async def main(python, home):
    settings = LegacySettings(python=python, home=home, workers=2, threads=4)
    async with LegacyTools(settings) as pool:
        async with anyio.create_task_group() as group:
            for number in range(2):
                rollout = pool.rollout()
                names = [tool.name for tool in rollout.tools]
                tools = ToolDispatcher(FakeSandbox(), names, extra_tools=rollout.tools)
                where = '{"url": "%s/"}' % sys.argv[3]
                await tools.call("browser_navigate", where, "1")
                group.start_soon(tools.call, "web_search", '{"query": "sleep:60 long"}', "2")
            print("busy", flush=True)

anyio.run(main, sys.argv[1], sys.argv[2])
"""
BROWSER = "86397"


def gone_within(limit_s: float, holds: Callable[[], bool]) -> float:
    """Wait until ``holds`` is false; returns how long that took."""
    began = time.monotonic()
    while holds():
        assert time.monotonic() - began < limit_s, "something is left"
        time.sleep(0.05)
    return time.monotonic() - began


@contextmanager
def hanging(how: str = "hang") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, how],
        env={**os.environ, **MARK},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdout is not None
        directory = Path(keeper.stdout.readline().decode().strip())
        try:
            yield keeper, directory
        finally:
            keeper.kill()


def test_a_worker_that_hangs_is_killed_when_the_engine_is_gone() -> None:
    with hanging() as (keeper, directory):
        assert directory.is_dir()
        assert processes(GRANDCHILD)
        assert keeper.stdin is not None
        keeper.stdin.close()
        assert keeper.wait(20) != 0
        assert not processes(GRANDCHILD)
        assert not directory.exists()


def test_a_worker_that_dies_leaves_nothing_but_its_last_words() -> None:
    with hanging("die") as (keeper, directory):
        assert keeper.wait(20) == 7
        assert keeper.stderr is not None
        assert keeper.stderr.read() == b"the last words"
        assert not processes(GRANDCHILD)
        assert not directory.exists()


def test_terminating_the_keeper_ends_everything_at_once() -> None:
    with hanging() as (keeper, directory):
        keeper.terminate()
        assert keeper.wait(20) == 143
        assert not processes(GRANDCHILD)
        assert not directory.exists()


def test_the_worker_dies_with_its_keeper() -> None:
    with hanging() as (keeper, directory):
        (worker,) = (pid for pid in processes("os.write(1") if parent(pid) == keeper.pid)
        keeper.kill()
        keeper.wait(20)
        gone_within(10, lambda: Path(f"/proc/{worker}").exists())
        for pid in processes(GRANDCHILD):  # Nobody was left to do that.
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["rm", "-r", str(directory)], check=True)


def test_a_killed_engine_takes_workers_and_browsers_with_it(
    hermes_python: str, tmp_path: Path
) -> None:
    with services() as world:
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        env = {**os.environ, **environment(world), "TMPDIR": str(temporary)}
        home = str(hermes_home(tmp_path, world))
        command = [sys.executable, "-c", ENGINE, hermes_python, home, PUBLIC]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as engine:
            assert engine.stdout is not None
            assert engine.stdout.readline() == b"busy\n"
            assert len(processes("in_worker")) == 4
            assert len(processes(BROWSER)) == 2
            engine.send_signal(signal.SIGKILL)
            engine.wait(10)
            took_s = gone_within(10, lambda: bool(processes("in_worker") + processes(BROWSER)))
            assert took_s < 8
            assert list(temporary.iterdir()) == []
        world.awake.set()
