"""From what a user types as ENVIRONMENT to an environment class.

ENVIRONMENT is a name registered in the entry-point group ``hermes_rl.environments``, ``path.py``
(with one environment class) or ``path.py:Class``, or anything that ``evaluate`` takes as TASKS:
a task set becomes an environment.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeGuard

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.task_set_env import environment_from
from hermes_rl.cli.environment import GROUP
from hermes_rl.cli.task_sets import find_tasks, import_file, task_set_names
from hermes_rl.errors import TaskError, UnknownName
from hermes_rl.plugins import load_plugin

__all__ = ["find_environment"]


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def find_environment(spec: str) -> type[HermesAgentBaseEnv]:
    """Return the class of what was typed as ENVIRONMENT.

    Raises:
        UnknownName: It is nothing known; lists the nearest names.
        TaskError: The file cannot be imported, or holds no environment.
    """
    points = _registered()
    if spec in points:
        loaded: object = load_plugin(points[spec], "Environment")
        if not _is_environment(loaded):
            raise TaskError(
                f"Environment {spec!r} is none: {points[spec].value} is no subclass of "
                "HermesAgentBaseEnv."
            )
        return loaded
    path, _, name = spec.partition(".py")
    if ".py" in spec and name[:1] in ("", ":"):
        return _from_file(Path(f"{path}.py"), name[1:])
    return _from_task_set(spec, points)


def _from_task_set(spec: str, points: dict[str, EntryPoint]) -> type[HermesAgentBaseEnv]:
    try:
        source = find_tasks(spec)
    except UnknownName as error:
        raise UnknownName.of("environment", spec, {*points, *task_set_names()}) from error
    name = Path(spec.rpartition(".py:")[2]).name
    return environment_from(lambda env: source.make(env.config), name=name)


def _from_file(path: Path, name: str) -> type[HermesAgentBaseEnv]:
    module = import_file(path.resolve())
    if name and not _is_environment(getattr(module, name, None)):
        if not hasattr(module, name):
            raise UnknownName.of(f"class in {path}:", name, vars(module))
        return _from_task_set(f"{path}:{name}", {})
    classes = [
        value
        for key, value in vars(module).items()
        if (key == name if name else _is_environment(value, module=module.__name__))
    ]
    if len(classes) != 1:
        found = ", ".join(cls.__name__ for cls in classes) or "none"
        raise TaskError(
            f"{path} must hold one environment class; found {found}. Name it: path:Class."
        )
    environment: type[HermesAgentBaseEnv] = classes[0]
    return environment


def _is_environment(
    value: object, *, module: str | None = None
) -> TypeGuard[type[HermesAgentBaseEnv]]:
    return (
        isinstance(value, type)
        and issubclass(value, HermesAgentBaseEnv)
        and (module is None or value.__module__ == module)
    )
