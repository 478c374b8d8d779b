"""Old import names: ``from environments.x import y`` in files written for the old framework.

A finder at the end of ``sys.meta_path`` makes modules whose names are looked up here. It stands
behind every other finder, so a real package called ``environments`` is never hidden. Installed by
our commands only, never by an import of this library.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["OLD_MODULES", "install_old_names"]

OLD_MODULES: dict[str, tuple[str, ...]] = {
    "environments": ("hermes_rl",),
    "environments.agent_loop": ("hermes_rl.agent", "hermes_rl.types", "hermes_rl.legacy"),
    "environments.benchmarks": (),
    "environments.benchmarks.tblite": (),
    "environments.benchmarks.tblite.tblite_env": ("hermes_rl.benchmarks.tblite.tblite_env",),
    "environments.benchmarks.terminalbench_2": (),
    "environments.benchmarks.terminalbench_2.terminalbench2_env": (
        "hermes_rl.benchmarks.terminalbench_2.terminalbench2_env",
    ),
    "environments.benchmarks.yc_bench": (),
    "environments.benchmarks.yc_bench.yc_bench_env": (
        "hermes_rl.benchmarks.yc_bench.yc_bench_env",
    ),
    "environments.hermes_base_env": ("hermes_rl.atropos.base_env", "hermes_rl.atropos.config"),
    "environments.hermes_swe_env": (),
    "environments.hermes_swe_env.hermes_swe_env": ("hermes_rl.envs.hermes_swe_env.hermes_swe_env",),
    "environments.patches": ("hermes_rl.legacy",),
    "environments.terminal_test_env": (),
    "environments.terminal_test_env.terminal_test_env": (
        "hermes_rl.envs.terminal_test_env.terminal_test_env",
    ),
    "environments.tool_call_parsers": ("hermes_rl.parsers",),
    "environments.tool_context": ("hermes_rl.context",),
}
"""Old module -> the modules in which its names are looked up, in order."""


class _OldModule(ModuleType):
    """A module whose attributes live elsewhere."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        places = OLD_MODULES[self.__name__]
        for place in places:
            try:
                module = importlib.import_module(place)
            except ModuleNotFoundError as error:
                if error.name != place:
                    raise
                continue
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(
            f"{self.__name__}.{name} has no successor in hermes_rl; see docs/migration.md."
        )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in OLD_MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are looked up when they are asked for."""


def install_old_names() -> None:
    """Make the old names importable in this process. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
