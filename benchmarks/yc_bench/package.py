"""The real ``yc-bench`` package, in a directory of its own.

Its wheel asks for Python 3.12 although its command line runs on 3.11, and it would bring
a large stack into every install. So it is never a dependency: the wheel, pinned by version and
hash, and the four libraries that its command line imports are installed once per host into the
cache directory with ``pip --target``, from the host's own Python. What is uploaded is an archive of
that directory, made once as well and without compiled files: 9 MB in the place of 56 MB.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import orjson

from hermes_rl.cache_directory import cache_directory
from hermes_rl.errors import TaskError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.sandbox import Check
from hermes_rl.types import JSONObject

__all__ = ["VERSION", "WHEEL_SHA256", "YCPackage", "examine_package", "load_package"]

VERSION = "0.1.0"
WHEEL_SHA256 = "732fa212580e36661f15b4d7f76ef0337c23047ac3cfd75f6e224fbc7419d81a"
"""Two published trees carry this version and differ; the hash says which is meant."""
_LIBRARIES = ("typer>=0.12,<1", "sqlalchemy>=2,<3", "pydantic>=2,<3", "python-dotenv>=1,<2")
_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PIP_S = 600.0
_installing = LoopLimiter(1)
_log = logging.getLogger("hermes_rl.benchmarks")

_FACTS = """
import json, sys
from importlib.resources import files
from yc_bench.config import load_config
from yc_bench.db.models.company import Domain
from yc_bench.cli import app
import typer
def commands(group, prefix=()):
    found = [" ".join((*prefix, c.name or c.callback.__name__)) for c in group.registered_commands]
    for sub in group.registered_groups:
        found += commands(sub.typer_instance, (*prefix, sub.name))
    return found
presets = {}
for file in files("yc_bench.config.presets").iterdir():
    name = file.name.removesuffix(".toml")
    if file.name.endswith(".toml"):
        cfg = load_config(name)
        presets[name] = {
            "initial_funds_cents": cfg.world.initial_funds_cents,
            "employees": cfg.world.num_employees,
            "market_tasks": cfg.world.num_market_tasks,
            "horizon_years": cfg.sim.horizon_years,
            "start_date": str(cfg.sim.start_date),
            "browse_limit": cfg.world.market_browse_default_limit,
            "fail_multiplier": cfg.world.penalty_fail_multiplier,
            "cancel_multiplier": cfg.world.penalty_cancel_multiplier,
            "workday": [cfg.world.workday_start_hour, cfg.world.workday_end_hour],
        }
print(json.dumps({"domains": [d.value for d in Domain], "presets": presets,
                  "commands": sorted(commands(app))}))
"""


@dataclass(slots=True, frozen=True)
class YCPackage:
    """An installed package.

    Attributes:
        archive: Its directory for ``PYTHONPATH``, as ``.tar.gz``.
        domains: Skills of employees and tasks.
        commands: Subcommands of ``yc-bench``, e.g. ``task accept``.
        presets: Facts by preset name: funds (cents), employees, tasks, horizon (years) ...
    """

    archive: Path
    domains: tuple[str, ...]
    commands: tuple[str, ...]
    presets: dict[str, JSONObject]

    @property
    def digest(self) -> str:
        """Version and hash, for headers and reports."""
        return f"{VERSION}+{WHEEL_SHA256[:12]}"


async def load_package(cache_dir: Path | None = None, *, python: str | None = None) -> YCPackage:
    """Return the package, installing it at first use.

    Args:
        cache_dir: None = the user's cache directory.
        python: Version of the Python that will import it, e.g. ``3.12``; None = this one's.

    Raises:
        TaskError: It cannot be downloaded or is not the one that is meant; says what pip said.
    """
    cache = cache_dir or cache_directory()
    return await anyio.to_thread.run_sync(_load, cache, python or _HERE, limiter=_installing)


def _load(cache: Path, python: str) -> YCPackage:
    own = _installed(cache, _HERE)
    facts = orjson.loads(_run([sys.executable, "-c", _FACTS], own, "reading yc-bench's facts"))
    archive = _archived(_installed(cache, python))
    return YCPackage(archive, tuple(facts["domains"]), tuple(facts["commands"]), facts["presets"])


def examine_package() -> list[Check]:
    """Say whether the package is there, or can be installed at first use."""
    path = _place(cache_directory(), _HERE)
    if path.is_dir():
        return [Check("package", ok=True, detail=f"yc-bench {VERSION} in {path}")]
    has_pip = importlib.util.find_spec("pip") is not None
    detail = f"yc-bench {VERSION} will be installed at first use, from PyPI into {path}"
    fix = f"{sys.executable} -m ensurepip"
    return [Check("package", ok=True, detail=detail), Check("pip", has_pip, fix=fix, optional=True)]


def _place(cache: Path, python: str) -> Path:
    key = f"{WHEEL_SHA256}\0{python}\0{platform.machine()}\0{_LIBRARIES}".encode()
    return cache / "yc-bench" / f"py{python}-{hashlib.sha256(key).hexdigest()[:12]}"


def _installed(cache: Path, python: str) -> Path:
    path = _place(cache, python)
    if not path.is_dir():
        _log.warning("Installing yc-bench %s into %s (once per host).", VERSION, path)
        _install(path, python)
    return path


def _install(path: Path, python: str) -> None:
    """Install into a temporary directory and move it into place: a half one is never used."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="install-", dir=path.parent))
    try:
        target, lines = work / "site", work / "requirements.txt"
        lines.write_text(f"yc-bench=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pip += ["--target", str(target)]
        _run(
            [*pip, "--no-deps", "--ignore-requires-python", "--require-hashes", "-r", str(lines)],
            None,
            "installing yc-bench",
        )
        foreign = ["--python-version", python, "--only-binary=:all:"] if python != _HERE else []
        _run([*pip, *foreign, *_LIBRARIES], None, "installing what yc-bench imports")
        target.rename(path)
    except OSError as error:
        if not path.is_dir():  # another process may have been faster, which is as good
            raise TaskError(f"yc-bench cannot be installed into {path}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _archived(path: Path) -> Path:
    """Return the archive of an installed package, which is made at first use."""
    archive = path.with_name(f"{path.name}.tar.gz")
    if archive.is_file():
        return archive
    try:
        with tempfile.TemporaryDirectory(prefix="pack-", dir=path.parent) as work:
            made = Path(work, archive.name)
            with tarfile.open(made, "w:gz") as tar:
                tar.add(path, arcname=".", filter=_without_compiled)
            made.replace(archive)
    except OSError as error:
        raise TaskError(f"yc-bench cannot be packed into {archive}: {error}") from error
    return archive


def _without_compiled(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith("/__pycache__") else entry


def _run(argv: list[str], pythonpath: Path | None, doing: str) -> bytes:
    env = {**os.environ, **({"PYTHONPATH": str(pythonpath)} if pythonpath else {})}
    try:
        done = subprocess.run(argv, capture_output=True, env=env, timeout=PIP_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TaskError(f"{doing} took longer than {PIP_S:.0f} s.") from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-2000:]
        raise TaskError(f"{doing} failed: {said}")
    return done.stdout
