"""``hermes_rl sandboxes`` and ``hermes_rl doctor`` as users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.docker import create_backend

from .docker_boxes import box, containers_of, docker, run_settings

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

LEAK = """
import anyio, os, signal, sys
from pathlib import Path
from hermes_rl.backends.docker import create_backend
from hermes_rl.sandbox import BackendSettings, SandboxSpec
async def main():
    settings = BackendSettings(run_id=sys.argv[1], cache_dir=Path(sys.argv[2]))
    async with create_backend(settings) as backend:
        sandbox = await backend.create(SandboxSpec(image="hermes-test:latest", network="none"))
        async with sandbox.pause():
            os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""


def _hermes_rl(*words: str, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "hermes_rl", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=env or None,
    )
    return done.returncode, done.stdout, done.stderr


async def test_a_living_runs_sandbox_is_listed_and_not_cleaned(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)
    async with create_backend(settings) as backend:
        sandbox = await backend.create(box(lease_s=7200))
        code, out, _ = _hermes_rl("sandboxes", "list")
        assert code == 0
        (line,) = [line for line in out.splitlines() if sandbox.id in line]
        assert line.split() == [
            sandbox.id,
            "running",
            settings.run_id,
            line.split()[3],
            "keep",
            "hermes-test:latest",
        ]
        assert line.split()[3].startswith(("1h59m", "2h00m"))
        code, out, _ = _hermes_rl("sandboxes", "clean")
        assert (code, sandbox.id in out) == (0, False)
        assert sandbox.id in containers_of(settings.run_id)


def test_a_dead_runs_sandbox_is_listed_and_cleaned(tmp_path: Path) -> None:
    for _ in range(5):
        settings = run_settings(tmp_path)
        run = [sys.executable, "-c", LEAK, settings.run_id, str(tmp_path)]
        assert subprocess.run(run, check=False, timeout=60).returncode == -9
        leaked = set(containers_of(settings.run_id))
        _, listed, _ = _hermes_rl("sandboxes", "list")
        code, cleaned, _ = _hermes_rl("sandboxes", "clean")
        assert code == 0
        assert containers_of(settings.run_id) == {}
        # Any other run on this daemon may have swept it first; then it is tried again.
        if leaked & set(cleaned.splitlines()):
            break
    (line,) = [line for line in listed.splitlines() if line.split()[0] in leaked]
    assert line.split()[1] == "paused"
    assert "owner dead" in line


def test_doctor_says_what_is_there_and_what_is_missing() -> None:
    code, out, _ = _hermes_rl("doctor", "docker")
    assert code == 0
    assert docker("version", "--format", "{{.Server.Version}}") in out
    code, out, _ = _hermes_rl("doctor", "docker", DOCKER_HOST="unix:///nonexistent.sock")
    assert code == 1
    assert "FAIL  docker daemon" in out
    assert "/nonexistent.sock" in out
    assert "DOCKER_HOST" in out


def test_doctor_tries_the_cache_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, _ = _hermes_rl("doctor", "docker", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert code == 1
    (line,) = [line for line in out.splitlines() if "FAIL" in line]
    assert "interpreter for sandboxes" in line
    assert "Set XDG_CACHE_HOME" in line


def test_without_a_daemon_listing_says_what_to_do() -> None:
    code, _, err = _hermes_rl("sandboxes", "list", DOCKER_HOST="unix:///nonexistent.sock")
    assert code == 3
    assert "DOCKER_HOST" in err


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    code, _, err = _hermes_rl("doctor", "dokcer")
    assert (code, "Did you mean 'docker'?" in err) == (2, True)
