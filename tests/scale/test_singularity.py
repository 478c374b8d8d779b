"""The singularity backend over the installed Apptainer or Singularity: ``make test-singularity``.

Images are the Docker tests' one: as a directory, which the kernel overlays, and as a SIF file that
is made from the Docker daemon's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
import pytest

from hermes_rl.backends.singularity import create_backend
from hermes_rl.backends.singularity_program import find_program
from hermes_rl.errors import BackendUnavailable
from hermes_rl.runlog.reader import read_run
from hermes_rl.sandbox import Backend, BackendSettings, Capability, SandboxSpec
from hermes_rl.testing.sandbox_conformance import SandboxConformance
from tests.integration.docker_boxes import TEST_IMAGE
from tests.integration.evaluate_process import processes_with, run
from tests.integration.image_files import unpacked_image
from tests.integration.tiny_tasks import TINY, expected_unseen, reasons_skipped, recorded_outcomes
from tests.proof import OUTCOME, Proof

pytestmark = [pytest.mark.singularity, pytest.mark.timeout(1800)]

PROOF = "singularity"
FROM_DAEMON = {"image_source": "docker-daemon", "task_limits": "ignore"}
SKIPPED = {"other-user": "The backend 'singularity' lacks what this task needs: users."}
"""Without ids of one's own there is one user; all other tasks run."""
MISSING = ["changes", "engine_access", "pause", "users"]
"""Of the reward phase's protections: nothing outside the sandbox looks into it for us."""
QUICK_S = 120.0
"""Longest wait for what takes no time on an idle machine."""
MAKE_FILES = """
mkdir /srv/many && cd /srv/many && python3 -c '
import os, time
began_s = time.perf_counter()
for number in range(1000):
    os.close(os.open(str(number), os.O_CREAT))
print(1000 / (time.perf_counter() - began_s))'
"""
OUTCOMES: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def program(docker_image: str) -> str:
    try:
        return str(find_program())
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def files(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image as a directory."""
    with unpacked_image(TEST_IMAGE, tmp_path_factory.mktemp("image")) as root:
        yield root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the SIF file is made once for all tests."""
    directory = tmp_path_factory.mktemp("cache")
    yield directory
    subprocess.run(["rm", "-rf", str(directory)], check=True)


def settings(cache: Path, **options: object) -> BackendSettings:
    cache_dir = cache / "hermes_rl"
    return BackendSettings(run_id="test", cache_dir=cache_dir, options=options)


class TestSingularityContainer(SandboxConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, files: Path) -> Backend:
        return create_backend(BackendSettings(run_id="test", options={"image": str(files)}))

    @pytest.fixture(autouse=True)
    def counted(self, request: pytest.FixtureRequest) -> Iterator[None]:
        yield
        OUTCOMES[request.node.stash.get(OUTCOME, "not declared")] += 1


async def test_what_was_tried(proof: Proof, program: str, cache: Path, files: Path) -> None:
    backend = create_backend(settings(cache, image=str(files)))
    checks = await backend.doctor()
    assert all(check.ok for check in checks)
    proof(f"{program}: {'; '.join(f'{check.name}: {check.detail}' for check in checks)}")
    async with backend:
        assert {Capability.ISOLATION, Capability.IMAGES} <= backend.capabilities
        proof(f"capabilities: {', '.join(sorted(backend.capabilities))}")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(OUTCOMES.items()))
    proof(f"conformance suite over a directory: {counts or 'not run'}")
    assert not OUTCOMES.keys() - {"passed", "not declared"}


@pytest.mark.parametrize("agent", ["oracle", "nop"])
async def test_tiny_tasks_have_dockers_scores_or_are_skipped_by_name(
    agent: str, cache: Path, tmp_path: Path, proof: Proof
) -> None:
    words = ["evaluate", "terminal-bench-2", f"--{agent}", "--env.terminal_backend", "singularity"]
    words += ["--env.backend_options", orjson.dumps(FROM_DAEMON).decode()]
    words += ["--env.dataset_name", str(TINY), "--env.data_dir_to_save_evals", "run"]
    words += ["--env.max_eval_workers", "4"]
    done = await anyio.to_thread.run_sync(
        lambda: run(tmp_path, *words, limit_s=1500.0, XDG_CACHE_HOME=str(cache))
    )
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run").exists(), done.stderr
    recorded = read_run(tmp_path / "run")
    got = recorded_outcomes(recorded, missing=MISSING)
    skipped = reasons_skipped(recorded)
    for name, outcome in sorted(got.items()):
        proof(f"{agent} {name}: {outcome}")
    proof(f"skipped: {skipped}")
    assert got == expected_unseen(agent, skipped=SKIPPED)
    assert skipped == SKIPPED


@pytest.mark.parametrize("kind", ["directory", "SIF file"])
async def test_what_it_costs(kind: str, files: Path, cache: Path, proof: Proof) -> None:
    image = str(files) if kind == "directory" else TEST_IMAGE
    create_s, command_s, close_s = [], [], []
    async with create_backend(settings(cache, **FROM_DAEMON)) as backend:
        sandbox = await backend.create(SandboxSpec(image=image))  # makes the image
        made = await sandbox.exec(MAKE_FILES, timeout_s=QUICK_S)
        await sandbox.close()
        for _ in range(10):
            began_s = time.perf_counter()
            sandbox = await backend.create(SandboxSpec(image=image))
            create_s.append(time.perf_counter() - began_s)
            for _ in range(20):
                began_s = time.perf_counter()
                assert (await sandbox.exec("true", timeout_s=QUICK_S)).exit_code == 0
                command_s.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            await sandbox.close()
            close_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(backend.create, SandboxSpec(image=image))
        many_s = time.perf_counter() - began_s
    medians = [statistics.median(each) * 1000 for each in (create_s, command_s, close_s)]
    proof(
        f"{kind}: create {medians[0]:.0f} ms, command {medians[1]:.1f} ms, close "
        f"{medians[2]:.0f} ms (medians); 40 at once up in {many_s:.1f} s; "
        f"{float(made.text):.0f} files made per second"
    )


@pytest.mark.parametrize("kind", ["directory", "SIF file"])
async def test_the_hosts_files_and_processes_are_out_of_reach(
    kind: str, files: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "APPTAINERENV_KEY", "SINGULARITYENV_KEY"):
        monkeypatch.setenv(name, "sesame")
    (tmp_path / "secret").write_text("sesame")
    (Path.home() / ".hermes_rl_secret").write_text("sesame")
    try:
        async with create_backend(settings(cache, **FROM_DAEMON)) as backend:
            image = str(files) if kind == "directory" else TEST_IMAGE
            sandbox = await backend.create(SandboxSpec(image=image, network="none"))
            looks = f"env; cat {tmp_path}/secret ~/.hermes_rl_secret; cat /proc/*/environ"
            seen = await sandbox.exec(looks, timeout_s=QUICK_S, merge_stderr=True)
            assert "sesame" not in seen.text
            assert seen.text.count("No such file") >= 2
            count = "tail -n +3 /proc/net/dev | wc -l; ls -d /proc/[0-9]* | wc -l"
            devices, processes = (await sandbox.exec(count, timeout_s=QUICK_S)).text.split()
            assert devices == "1"
            assert int(processes) < 8
            for forbidden in (f"kill -0 {os.getpid()}", "echo x >/.hermes/x", "mknod /n b 8 0"):
                assert (await sandbox.exec(forbidden, timeout_s=QUICK_S)).exit_code != 0
            await sandbox.exec("kill -9 1; kill -9 -1", timeout_s=QUICK_S)
            assert (await sandbox.exec("echo on", timeout_s=QUICK_S)).text == "on\n"
    finally:
        (Path.home() / ".hermes_rl_secret").unlink()


ENGINE = """
import anyio, sys
from pathlib import Path
from hermes_rl.sandbox import *

async def main():
    options = {"image": sys.argv[1], "image_source": "docker-daemon"}
    cache_dir = Path(sys.argv[2], "hermes_rl")
    settings = BackendSettings(run_id="victim", cache_dir=cache_dir, options=options)
    async with open_backend("singularity", settings) as backend:
        for _ in range(5):
            box = await backend.create(SandboxSpec())
            await box.exec("setsid sleep 424243 >/dev/null 2>&1 &", timeout_s=60)
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def busy() -> int:
    """Count the commands of that engine."""
    return sum(line.startswith("sleep 424243") for line in processes_with(["sleep", "424243"]))


@pytest.mark.parametrize("kind", ["directory", "SIF file"])
async def test_an_engine_that_is_killed_leaves_nothing(
    kind: str,
    files: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proof: Proof,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    image = str(files) if kind == "directory" else TEST_IMAGE
    words = [sys.executable, "-c", ENGINE, image, str(cache)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline() == "up\n"
            while busy() < 5:
                await anyio.sleep(0.05)
        finally:
            engine.kill()
    began_s = time.monotonic()
    with anyio.fail_after(QUICK_S):
        while busy() or list(tmp_path.glob("hermes_rl-*/*/*/")):
            await anyio.sleep(0.05)
        proof(f"{kind}: 5 sandboxes gone {time.monotonic() - began_s:.1f} s after kill -9")
        while [line for line in processes_with([str(tmp_path)]) if "pytest" not in line]:
            await anyio.sleep(0.05)
    clean = ["sandboxes", "clean", "--backend", "singularity"]
    done = await anyio.to_thread.run_sync(
        lambda: run(tmp_path, *clean, XDG_CACHE_HOME=str(cache), limit_s=QUICK_S)
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("hermes_rl-*/*")) == []
