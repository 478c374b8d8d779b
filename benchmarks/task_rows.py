"""Tasks from the rows of a data set, as on the Hugging Face hub.

Columns: ``task_name``, ``instruction``, ``docker_image``, ``tests_tar`` and ``environment_tar``
(base64 of a gzip-compressed tar of what is in ``tests/`` and ``environment/``), ``test_sh``;
optionally ``category``, ``difficulty``, ``tags`` (a list as JSON text), ``agent_timeout_sec``,
``test_timeout_sec``. There are no solutions.

Archives are unpacked once per content, below ``$XDG_CACHE_HOME/hermes_rl/tasks``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hermes_rl.benchmarks.archive import unpack
from hermes_rl.benchmarks.terminal_task import NEEDS, TerminalTask, content_digest
from hermes_rl.benchmarks.verification import REPORT_OPTION, Verifier
from hermes_rl.benchmarks.verifier_run import Harness
from hermes_rl.cache_directory import cache_directory
from hermes_rl.envs.dataset import tasks_of
from hermes_rl.errors import TaskError
from hermes_rl.sandbox import SandboxSpec

__all__ = ["COLUMNS", "RowDefaults", "tasks_of_rows"]

COLUMNS = ("task_name", "instruction", "tests_tar", "test_sh")
"""Columns that every row must have."""
ABANDONED_S = 3600.0
"""A half-unpacked directory this old belongs to a process that was killed."""
_PARTIAL = ".partial-"
_TESTS, _ENVIRONMENT, _DIGESTS = "tests", "environment", "digests.json"


@dataclass(slots=True, frozen=True, kw_only=True)
class RowDefaults:
    """What a data set's rows may leave out.

    Attributes:
        agent_s: Seconds for the agent.
        test_s: Seconds for the tests.
    """

    agent_s: float
    test_s: float


def tasks_of_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    defaults: RowDefaults,
    force_build: bool = False,
    cache: Path | None = None,
) -> list[TerminalTask]:
    """Return rows as tasks, in their order. Blocks.

    Args:
        rows: With at least :data:`COLUMNS`.
        defaults: For what they leave out.
        force_build: Build images from Dockerfiles although rows name prebuilt ones.
        cache: Where archives are unpacked; None = the user's cache directory.

    Raises:
        MalformedTasks: Rows are malformed, or their archives are not safe: all faults, with the
            other tasks.
        TaskError: The cache cannot be used.
    """
    root = cache or cache_directory() / "tasks"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root)
    except OSError as error:
        raise TaskError(f"{root}, where tasks are unpacked, cannot be used: {error}") from error
    return tasks_of(
        rows,
        lambda row, index: _Row(row, index).task(root, defaults, force_build=force_build),
        row_id=_row_id,
        facts=_facts,
    )


def _row_id(row: Mapping[str, Any], index: int) -> str:
    return str(row.get("task_name") or "").strip() or f"row-{index}"


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a malformed row, as far as it can be read."""
    facts = {}
    for name in ("category", "difficulty", "tags"):
        value = row.get(name)
        if isinstance(value, str | list):
            facts[name] = _list_in(value) if name == "tags" and isinstance(value, str) else value
    return facts


def _remove_abandoned(root: Path) -> None:
    for path in root.glob(f"{_PARTIAL}*"):
        if time.time() - path.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


class _Row:
    """One row, read column by column; every fault names task and column."""

    def __init__(self, row: Mapping[str, Any], index: int) -> None:
        self._row = row
        self.name = str(row.get("task_name") or "").strip()
        if not self.name:
            raise TaskError(f"row {index}, task_name: it has no name.")

    def task(self, cache: Path, defaults: RowDefaults, *, force_build: bool) -> TerminalTask:
        """Return the row as a task; its archives are unpacked."""
        prompt = self._text("instruction")
        if not prompt.strip():
            raise self._fault("instruction", "it is empty, and it is the prompt")
        agent_s = self._seconds("agent_timeout_sec", defaults.agent_s)
        test_s = self._seconds("test_timeout_sec", defaults.test_s)
        folder, digests = self._unpacked(cache)
        sandbox = self._sandbox(folder / _ENVIRONMENT, force_build=force_build)
        script = (folder / _TESTS / "test.sh").read_bytes()
        identity = orjson.dumps([self.name, prompt, sandbox.image, agent_s, test_s, digests])
        return TerminalTask(
            id=self.name,
            prompt=prompt,
            sandbox=sandbox,
            setup_s=None,
            agent_s=agent_s,
            metadata={**self._metadata(), "digest": hashlib.sha256(identity).hexdigest()},
            verifier=Verifier(
                harness=Harness(tests=folder / _TESTS),
                timeout_s=test_s,
                wants_report=REPORT_OPTION in script,
            ),
        )

    def _fault(self, column: str, what: str) -> TaskError:
        return TaskError(f"task {self.name}, {column}: {what}.")

    def _text(self, column: str) -> str:
        value = self._row.get(column)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        if not isinstance(value, str):
            raise self._fault(column, f"it must be text, not {type(value).__name__}")
        return value

    def _seconds(self, column: str, default: float) -> float:
        value = self._row.get(column)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise self._fault(column, f"it must be a number of seconds, not {value!r}")
        return float(value)

    def _metadata(self) -> dict[str, Any]:
        tags = self._row.get("tags")
        if not isinstance(tags, list):
            tags = _list_in(self._text("tags"))
        given = {name: self._text(name) for name in ("category", "difficulty")}
        return {name: value for name, value in given.items() if value} | {"tags": tags}

    def _sandbox(self, context: Path, *, force_build: bool) -> SandboxSpec:
        image = self._text("docker_image").strip()
        builds = force_build or not image
        if builds and not (context / "Dockerfile").is_file():
            raise self._fault("environment_tar", "there is no Dockerfile in it to build from")
        return SandboxSpec(
            image=None if builds else image,
            dockerfile_dir=context if builds else None,
            needs=NEEDS,
        )

    def _unpacked(self, cache: Path) -> tuple[Path, dict[str, str]]:
        """Return the directory with ``tests`` and ``environment``, and their digests."""
        columns = {"tests_tar": _TESTS, "environment_tar": _ENVIRONMENT}
        texts = {name: self._text(name) for name in columns}
        script = self._text("test_sh")
        if not script.strip() and not texts["tests_tar"]:
            raise self._fault("test_sh", "there is no verifier, neither here nor in tests_tar")
        key = hashlib.sha256()
        for text in (*texts.values(), script):
            key.update(b"%d\0" % len(text))
            key.update(text.encode("utf-8", "surrogateescape"))
        folder = cache / key.hexdigest()
        if not (folder / _DIGESTS).is_file():
            self._unpack(
                folder, {columns[name]: (name, text) for name, text in texts.items()}, script
            )
        return folder, orjson.loads((folder / _DIGESTS).read_bytes())

    def _unpack(self, folder: Path, archives: Mapping[str, tuple[str, str]], script: str) -> None:
        """Unpack beside the final place and move: a half-unpacked task is never used."""
        try:
            work = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder.parent))
            try:
                for name, (column, text) in archives.items():
                    self._unpack_one(column, text, work / name)
                self._write_script(work / _TESTS / "test.sh", script)
                digests = {name: content_digest(work / name) for name in archives}
                (work / _DIGESTS).write_bytes(orjson.dumps(digests))
                if not folder.exists():
                    work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            # Another process may have been faster, which is as good.
            if not (folder / _DIGESTS).is_file():
                raise self._fault("tests_tar", f"it cannot be unpacked: {error}") from error

    def _unpack_one(self, column: str, text: str, target: Path) -> None:
        target.mkdir()
        if not text:
            return
        try:
            unpack(base64.b64decode("".join(text.split()), validate=True), target)
        except binascii.Error as error:
            raise self._fault(column, f"it is no base64 ({error})") from None
        except TaskError as error:
            raise self._fault(column, f"the archive is refused: {error}") from None

    def _write_script(self, path: Path, script: str) -> None:
        """Write ``test_sh``, which wins over a ``test.sh`` in the archive."""
        if script.strip():
            path.unlink(missing_ok=True)
            path.write_text(script, encoding="utf-8", errors="surrogateescape")
        elif not path.is_file():
            raise self._fault("tests_tar", "there is no test.sh in it, and test_sh is empty")
        path.chmod(0o755)


def _list_in(text: str) -> list[Any]:
    """Return the list that a text holds as JSON; any other text is the one element of it."""
    try:
        value = orjson.loads(text) if text else []
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, list) else [value]
