"""The interpreter directory: what is in it, and that it runs without anything of the host's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hermes_rl.backends import runtime
from hermes_rl.backends.runtime import Runtime, build_runtime
from hermes_rl.errors import BackendUnavailable

PROGRAM = """
import sys
print(sys.prefix, sys.flags.isolated, sys.flags.utf8_mode, ",".join(sys.argv[1:]))
def later():
    import ctypes, tarfile, collections.abc
    return ctypes, tarfile, collections.abc
later()
"""
PYENV = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
INTERPRETERS = [Path("/usr/bin/python3"), *sorted(PYENV.glob("versions/3.1[1-9]*/bin/python3"))]


@pytest.fixture
def program(tmp_path: Path) -> dict[str, Path]:
    source = tmp_path / "program.py"
    source.write_text(PROGRAM)
    return {"program": source}


def _is_new_enough(python: Path) -> bool:
    if not python.exists():
        return False
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def _run(built: Runtime, *arguments: str) -> str:
    command = built.argv("program", *arguments, mount=str(built.path))
    environment = {"PYTHONHOME": "/nowhere", "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("python", [None, *INTERPRETERS], ids=str)
def test_every_kind_of_interpreter_can_be_copied(
    python: Path | None, program: dict[str, Path], tmp_path: Path
) -> None:
    if python is not None and not _is_new_enough(python):
        pytest.skip(f"{python} is absent or older than 3.11")
    built = build_runtime(tmp_path / "cache", python=python, programs=program)
    assert _run(built, "a", "b") == f"{built.path} 1 1 a,b\n"


def test_a_virtual_environment_gives_its_base_interpreter(
    program: dict[str, Path], tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    built = build_runtime(tmp_path / "cache", python=venv / "bin/python", programs=program)
    assert _run(built) == f"{built.path} 1 1 \n"


def test_nothing_of_the_host_is_loaded(program: dict[str, Path], tmp_path: Path) -> None:
    program["program"].write_text(PROGRAM + "print(open('/proc/self/maps').read())")
    built = build_runtime(tmp_path / "cache", programs=program)
    mapped = {line.split()[-1] for line in _run(built).splitlines() if ".so" in line}
    assert mapped
    assert {path for path in mapped if not path.startswith(str(built.path))} == set()


def test_it_is_small(program: dict[str, Path], tmp_path: Path) -> None:
    built = build_runtime(tmp_path / "cache", programs=program)
    size = sum(path.stat().st_size for path in built.path.rglob("*") if path.is_file())
    assert size < 20 << 20


def test_anyone_may_read_it_and_only_the_owner_write(
    program: dict[str, Path], tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        built = build_runtime(tmp_path / "cache", programs=program)
    finally:
        os.umask(before)
    for path in [built.path, *built.path.rglob("*")]:
        wanted = 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644
        assert path.stat().st_mode & 0o777 == wanted, path


def test_it_is_built_once(program: dict[str, Path], tmp_path: Path) -> None:
    first = build_runtime(tmp_path / "cache", programs=program)
    inode = (first.path / "bin/python3").stat().st_ino
    second = build_runtime(tmp_path / "cache", programs=program)
    assert second == first
    assert (second.path / "bin/python3").stat().st_ino == inode


def test_another_program_gives_another_directory(program: dict[str, Path], tmp_path: Path) -> None:
    first = build_runtime(tmp_path / "cache", programs=program)
    program["program"].write_text(PROGRAM + "# changed\n")
    assert build_runtime(tmp_path / "cache", programs=program).digest != first.digest
    assert first.path.exists()


def test_a_torn_directory_is_replaced(program: dict[str, Path], tmp_path: Path) -> None:
    built = build_runtime(tmp_path / "cache", programs=program)
    (built.path / "bin/python3").write_bytes(b"")
    assert build_runtime(tmp_path / "cache", programs=program) == built
    assert _run(built)
    assert os.listdir(tmp_path / "cache") == [built.path.name]


def test_concurrent_builders_agree(program: dict[str, Path], tmp_path: Path) -> None:
    results: list[Runtime] = []

    def build() -> None:
        results.append(build_runtime(tmp_path / "cache", programs=program))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert os.listdir(tmp_path / "cache") == [results[0].path.name]
    assert _run(results[0])


def test_a_killed_builders_leftovers_are_removed(program: dict[str, Path], tmp_path: Path) -> None:
    old, fresh = tmp_path / "cache/.runtime-old", tmp_path / "cache/.runtime-fresh"
    for path in (old, fresh):
        path.mkdir(parents=True)
    two_hours_ago_s = time.time() - 7200
    os.utime(old, (two_hours_ago_s, two_hours_ago_s))
    build_runtime(tmp_path / "cache", programs=program)
    assert not old.exists()
    assert fresh.exists()


def test_what_no_run_has_opened_for_a_month_goes(program: dict[str, Path], tmp_path: Path) -> None:
    old, used = tmp_path / "cache/runtime-old", tmp_path / "cache/runtime-used"
    for path, days in ((old, 31), (used, 29)):
        path.mkdir(parents=True)
        then_s = time.time() - days * 86400
        os.utime(path, (then_s, then_s))
    built = build_runtime(tmp_path / "cache", programs=program)
    assert not old.exists()
    assert used.exists()
    os.utime(built.path, (0, 0))
    assert build_runtime(tmp_path / "cache", programs=program) == built
    assert time.time() - built.path.stat().st_mtime < 3600


def test_a_script_in_place_of_an_interpreter_is_refused(
    program: dict[str, Path], tmp_path: Path
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 7\n")
    fake.chmod(0o755)
    with pytest.raises(BackendUnavailable, match=r"cannot be made from .*python"):
        build_runtime(tmp_path / "cache", python=fake, programs=program)


def test_an_unwritable_cache_is_named(program: dict[str, Path], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(BackendUnavailable, match=f"{blocked}.*Set XDG_CACHE_HOME"):
        build_runtime(blocked / "cache", programs=program)


def test_the_shipped_programs_are_in_it(tmp_path: Path) -> None:
    built = build_runtime(tmp_path / "cache")
    for name in runtime.PROGRAMS:
        assert (built.path / f"{name}.pyc").is_file()
