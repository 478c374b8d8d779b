"""Rows of a data set: from the Hugging Face hub, or from local files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from hermes_rl.errors import ConfigError, MissingExtra, TaskError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.sandbox import Check
from hermes_rl.tasks import MalformedTask, MalformedTasks, Task

__all__ = ["examine_data_set", "load_rows", "require_columns", "tasks_of"]

T = TypeVar("T", bound=Task)
Row = Mapping[str, Any]

_FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}
_HUB_HINT = (
    " Without the hub, --env.dataset_name takes a file or a directory; a private data set needs "
    "HF_TOKEN."
)
_loading = LoopLimiter(1)
"""One data set at a time: loading fills memory and the disk cache."""


def examine_data_set(name: str) -> Check:
    """Say whether a data set could be loaded here; asks nobody."""
    try:
        detail = f"{name}, loaded with datasets {version('datasets')}"
        return Check("data set", ok=True, detail=detail)
    except PackageNotFoundError:
        fix = "pip install 'hermes_rl[datasets]'"
        detail = f"{name} needs the package datasets"
        return Check("data set", ok=False, detail=detail, fix=fix, optional=True)


async def load_rows(
    name: str, *, split: str = "train", config_name: str | None = None
) -> list[dict[str, Any]]:
    """Load all rows of a data set in a thread.

    Args:
        name: A data set on the hub (``owner/name``, or ``owner/name@revision`` for one that
            cannot change), a file (.json, .jsonl, .parquet, .csv), or a directory of such files
            or of a data set saved for the hub.
        split: Split to take; ``train[:10]`` and the like work. A single local file has only
            the split ``train``, whatever is asked for.
        config_name: Configuration of a hub data set, e.g. the language of ``humanevalpack``.

    Raises:
        MissingExtra: The package ``datasets`` is not installed.
        ConfigError: The file does not exist or is of an unknown kind.
        TaskError: It cannot be loaded; says why.
    """
    return await anyio.to_thread.run_sync(_load, name, split, config_name, limiter=_loading)


def _load(name: str, split: str, config_name: str | None) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra.of(f"The data set {name}", "datasets") from error
    path = Path(name)
    try:
        if path.exists():
            return _load_local(datasets, path, split)
        if path.suffix in _FORMATS or name.startswith((".", "/")):
            raise ConfigError(f"The data set file {name} does not exist.")
        hub_name, _, revision = name.partition("@")
        rows = datasets.load_dataset(hub_name, config_name, split=split, revision=revision or None)
        return [dict(row) for row in rows]
    except ConfigError:
        raise
    except Exception as error:  # datasets raises what its readers and the hub raise
        said = str(error).rstrip(".")
        hint = "" if path.exists() else _HUB_HINT
        message = f"The data set {name} (split {split}) cannot be loaded: {said}.{hint}"
        raise TaskError(message) from error


def _load_local(datasets: ModuleType, path: Path, split: str) -> list[dict[str, Any]]:
    """Load local files without leaving a second copy of them in the cache of ``datasets``."""
    with tempfile.TemporaryDirectory() as cache, _no_progress_bars(datasets):
        if path.is_file():
            rows = datasets.load_dataset(
                _format_of(path), data_files=str(path), split=_of_one_file(split), cache_dir=cache
            )
        else:
            rows = datasets.load_dataset(str(path), split=split, cache_dir=cache)
        return [dict(row) for row in rows]


@contextmanager
def _no_progress_bars(datasets: ModuleType) -> Iterator[None]:
    """Reading a local file is too short for one."""
    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()


def _format_of(path: Path) -> str:
    if path.suffix not in _FORMATS:
        raise ConfigError(f"{path} must end in one of {', '.join(sorted(_FORMATS))}.")
    return _FORMATS[path.suffix]


def _of_one_file(split: str) -> str:
    _, bracket, part = split.partition("[")
    return f"train{bracket}{part}"


def require_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], name: str) -> None:
    """Check that rows have the columns a task needs.

    Raises:
        TaskError: There are no rows, or a column is missing; names those that are there.
    """
    if not rows:
        raise TaskError(f"The data set {name} has no rows.")
    missing = [column for column in columns if column not in rows[0]]
    if missing:
        raise TaskError(
            f"The data set {name} lacks the columns {', '.join(missing)}; it has "
            f"{', '.join(rows[0])}."
        )


def tasks_of(
    rows: Sequence[Row],
    make: Callable[[Row, int], T],
    *,
    row_id: Callable[[Row, int], str],
    facts: Callable[[Row], Mapping[str, Any]] = lambda row: {},
) -> list[T]:
    """Return rows as tasks, in their order. A malformed one does not keep back the others.

    Args:
        rows: As :func:`load_rows` gives them.
        make: Makes a task of a row and its place; raises ``TaskError`` for a malformed one.
        row_id: Id of the task of a row, malformed or not.
        facts: Metadata of a malformed row, by which ``task_filter`` may choose it.

    Raises:
        MalformedTasks: Some rows are malformed: all faults, with the other tasks.
    """
    tasks: list[T] = []
    malformed: list[MalformedTask] = []
    for index, row in enumerate(rows):
        try:
            tasks.append(make(row, index))
        except TaskError as error:
            malformed.append(
                MalformedTask(id=row_id(row, index), fault=str(error), metadata=facts(row))
            )
    if malformed:
        raise MalformedTasks.among(tasks, malformed)
    return tasks
