"""``hermes_rl doctor``: what is missing, and what of it is a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLES = (
    *("TERMINAL_SSH_HOST", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "DAYTONA_API_KEY"),
    "XDG_CACHE_HOME",
)


def doctor(*names: str, folder: Path) -> tuple[int, dict[str, list[str]]]:
    """Run it without any account; return the exit code and each backend's lines."""
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-m", "hermes_rl", "doctor", *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
        env=env | {"HOME": str(folder), "MODAL_CONFIG_PATH": str(folder / "modal.toml")},
    )
    assert not done.stderr
    backends: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith(" "):
            backends[list(backends)[-1]].append(line.strip())
        else:
            backends[line.removesuffix(":")] = []
    return done.returncode, backends


def test_only_what_is_set_up_can_be_at_fault(tmp_path: Path) -> None:
    code, backends = doctor(folder=tmp_path)
    assert {"local", "docker", "modal", "daytona", "ssh"} <= backends.keys()
    for name in ("modal", "daytona", "ssh"):
        assert any(line.startswith("--") for line in backends[name]), backends[name]
        assert not any(line.startswith("FAIL") for line in backends[name])
    failed = any(line.startswith("FAIL") for lines in backends.values() for line in lines)
    assert code == int(failed)


def test_what_is_set_up_wrongly_is_at_fault_without_being_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TERMINAL_SSH_HOST=me@host:notaport\n")
    code, backends = doctor(folder=tmp_path)
    assert code == 1
    assert any(line.startswith("FAIL") for line in backends["ssh"])


def test_a_backend_that_is_named_must_be_set_up(tmp_path: Path) -> None:
    code, backends = doctor("ssh", "modal", folder=tmp_path)
    assert (code, list(backends)) == (1, ["ssh", "modal"])
    for lines in backends.values():
        assert any(line.startswith("FAIL") for line in lines)


def test_local_says_whether_bubblewrap_works(tmp_path: Path) -> None:
    _, backends = doctor("local", folder=tmp_path)
    assert any("bubblewrap" in line for line in backends["local"])


def test_keys_of_dotenv_are_seen(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TERMINAL_SSH_HOST=127.0.0.1:1\n")
    _, backends = doctor("ssh", folder=tmp_path)
    assert "127.0.0.1:1" in backends["ssh"][0]


def test_task_sets_say_what_they_need_and_nothing_is_installed_for_it(tmp_path: Path) -> None:
    code, told = doctor("yc-bench", "tblite", "extras", folder=tmp_path)
    assert list(told) == ["yc-bench", "tblite", "extras"]
    assert "will be installed at first use" in told["yc-bench"][0]
    assert any("python3 of local sandboxes: 3." in line for line in told["yc-bench"])
    assert any("NousResearch/openthoughts-tblite" in line for line in told["tblite"])
    assert any(line.startswith("ok") and "atroposlib" in line for line in told["extras"])
    assert not list(tmp_path.iterdir())
    failed = any(line.startswith("FAIL") for lines in told.values() for line in lines)
    assert code == int(failed)


def test_without_names_task_sets_and_extras_are_looked_at_too(tmp_path: Path) -> None:
    _, told = doctor(folder=tmp_path)
    assert {"yc-bench", "terminal-bench-2", "tblite", "hermes-swe", "extras"} <= told.keys()
