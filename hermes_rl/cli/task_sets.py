"""From what a user types as TASKS to a task set.

TASKS is a name registered in the entry-point group ``hermes_rl.tasks``, ``path.py:Class``, or a
directory of tasks in Terminal-Bench layout. A class (or any callable) that makes a task set may
name configuration fields as its parameters (``def __init__(self, seed=0)``): those the user set
are passed. It may have a ``config_init()`` like an Atropos environment: a classmethod without
arguments that returns an ``EnvConfig``, or a pair of it and a ``ServerConfig`` or a list of them.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from hermes_rl.atropos.old_names import install_old_names
from hermes_rl.author_code import failure_text
from hermes_rl.benchmarks.task_directory import TaskDirectory
from hermes_rl.config import ConfigModel, EnvConfig, ServerConfig
from hermes_rl.config_layers import layer_of_models
from hermes_rl.config_sources import Layer
from hermes_rl.errors import HermesRLError, TaskError, UnknownName
from hermes_rl.plugins import load_plugin
from hermes_rl.tasks import TaskSet

__all__ = [
    "TaskSource",
    "class_in_file",
    "failure_text",
    "find_tasks",
    "import_file",
    "task_set_names",
]

GROUP = "hermes_rl.tasks"
_imported: dict[tuple[Path, int, int], ModuleType] = {}
"""By path, time and size of the file: what a file does when it is imported is done once."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskSource:
    """Where tasks come from.

    Attributes:
        spec: What was typed, with paths made absolute: finds the same tasks from anywhere.
        factory: Makes the task set.
        env_cls: Its configuration model.
        init: What its ``config_init()`` sets.
    """

    spec: str
    factory: Callable[..., Any]
    env_cls: type[EnvConfig] = EnvConfig
    init: Layer = field(default_factory=lambda: Layer(source="config_init()"))

    def make(self, config: ConfigModel) -> TaskSet:
        """Make the task set, passing the configuration fields that its maker names.

        Raises:
            TaskError: It cannot be made, or has no ``load()``.
        """
        values = {name: getattr(config, name) for name in config.model_fields_set}
        try:
            named = inspect.signature(self.factory).parameters
            made = self.factory(**{name: values[name] for name in named if name in values})
        except (Exception, SystemExit) as error:  # the author's code may raise anything
            raise TaskError(f"{self.spec} cannot be made: {failure_text(error)}") from error
        if not callable(getattr(made, "load", None)):
            raise TaskError(
                f"{self.spec} is no task set: a {type(made).__name__} has no load() method. "
                "A task set has a name and 'async def load(self)' that returns tasks."
            )
        if not isinstance(getattr(made, "name", None), str):
            raise TaskError(f"{self.spec} is no task set: it has no name (a string).")
        return cast(TaskSet, made)


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def task_set_names() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(_registered())


def find_tasks(spec: str) -> TaskSource:
    """Return the source of what was typed as TASKS.

    Raises:
        UnknownName: It is none of the three forms, or no such class.
        TaskError: The file cannot be imported.
    """
    if not spec.strip():
        raise TaskError(f"TASKS is empty ({spec!r}). 'hermes_rl list tasks' names the task sets.")
    path, colon, name = spec.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), name)
    points = _registered()
    if spec in points:
        return _source(spec, load_plugin(points[spec], "Task set"))
    if Path(spec).is_dir():
        folder = Path(spec).resolve()
        return TaskSource(spec=str(folder), factory=partial(TaskDirectory, folder))
    if "/" in spec or spec.endswith(".py"):
        hint = f" Name the class: {spec}:Class." if spec.endswith(".py") else ""
        raise TaskError(f"{spec} is no directory of tasks.{hint}")
    raise UnknownName.of("task set", spec, points)


def _source(spec: str, factory: Callable[..., Any]) -> TaskSource:
    return TaskSource(
        spec=spec,
        factory=factory,
        env_cls=getattr(factory, "env_config_cls", EnvConfig),
        init=_init_layer(spec, factory),
    )


def _init_layer(spec: str, factory: Callable[..., Any]) -> Layer:
    init = getattr(factory, "config_init", None)
    source = f"config_init() of {spec}"
    if init is None:
        return Layer(source=source)
    try:
        made = init()
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        raise TaskError(f"{source} failed: {failure_text(error)}") from error
    env, servers = made if isinstance(made, tuple) else (made, [])
    if isinstance(servers, ServerConfig):
        servers = [servers]
    if not isinstance(env, ConfigModel) or not all(isinstance(s, ServerConfig) for s in servers):
        raise TaskError(f"{source} must return an EnvConfig, or (EnvConfig, [ServerConfig, ...]).")
    return layer_of_models(env, servers or None, source)


def class_in_file(spec: str) -> object | None:
    """Return what ``path.py:Name`` names; None if ``spec`` is no such thing, or it has no Name.

    Raises:
        TaskError: The file cannot be imported.
    """
    path, colon, name = spec.rpartition(":")
    if not (colon and path.endswith(".py")):
        return None
    return getattr(import_file(Path(path).resolve()), name, None)


def _from_file(path: Path, name: str) -> TaskSource:
    module = import_file(path.resolve())
    if not hasattr(module, name):
        classes = [n for n, value in vars(module).items() if isinstance(value, type)]
        raise UnknownName.of(f"class in {path}:", name, classes)
    return _source(f"{path.resolve()}:{name}", getattr(module, name))


def import_file(path: Path) -> ModuleType:
    """Import a file as a script would be: its folder is where its own imports are found.

    The old framework's module names are at hand. A file that has not changed is imported once.

    Args:
        path: The file, an absolute path.

    Raises:
        TaskError: There is no such file, it is no Python, or its code failed.
    """
    if not path.is_file():
        raise TaskError(f"{path} does not exist.")
    install_old_names()
    status = path.stat()
    stamp = (path, status.st_mtime_ns, status.st_size)
    if stamp in _imported:
        return _imported[stamp]
    name = f"hermes_rl_tasks_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{path} is no Python file.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except HermesRLError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        del sys.modules[name]
        raise TaskError(f"{path} cannot be imported: {failure_text(error)}") from error
    _imported[stamp] = module
    return module
