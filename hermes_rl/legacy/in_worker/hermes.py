"""hermes-agent's tools as this library uses them. Everything here blocks; calls come from threads.

What hermes-agent keeps per process is kept apart per rollout by its own means: an environment
override for each rollout's id (without one all ids share one environment), and that id with every
call. Its interrupt bits belong to threads, so a bit is set only while the call it is meant for
runs, and is cleared whatever happens.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from .home import has_skills

__all__ = ["Hermes", "Outcome", "normalised"]

MAX_CONTENT_CHARS = 8_000_000
"""Of one result; the rest is cut off."""
ISOLATION = {"env_type": "local"}
"""Any key of this kind makes hermes-agent give a rollout id an environment of its own."""
CONFINEMENT = (
    ("tools.browser_tool", "_is_local_backend"),
    ("tools.image_source", "_is_local_terminal_backend"),
)
"""Functions by which hermes-agent asks whether the agent may see this machine's files and private
network anyway. Here it may not: its commands run in a sandbox."""
NEEDS_SKILLS = ("skills_list", "skill_view")

_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """One result.

    Attributes:
        content: Text, or JSON text of a list of content parts.
        is_parts: The latter.
        error: What went wrong, if the result says so.
    """

    content: str
    is_parts: bool = False
    error: str | None = None


class Hermes:
    """The imported hermes-agent. Make it once per process, off any event loop.

    Raises:
        ImportError: It is not installed, or not a version whose tools can be confined.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._model_tools = importlib.import_module("model_tools")
        self._registry = importlib.import_module("tools.registry").registry
        self._interrupts = importlib.import_module("tools.interrupt")
        self._terminal = importlib.import_module("tools.terminal_tool")
        self._loops: dict[int, asyncio.AbstractEventLoop] = {}
        self._interrupted: set[int] = set()
        for module, function in CONFINEMENT:
            _replace(importlib.import_module(module), function, lambda original: lambda: False)
        _replace(self._model_tools, "_get_worker_loop", self._remembering)

    @property
    def version(self) -> str:
        """The installed version."""
        return importlib.metadata.version("hermes-agent")

    def _remembering(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap what makes a thread's event loop, so that a call waiting in it can be cancelled."""

        def worker_loop() -> Any:
            loop = original()
            self._loops[threading.get_ident()] = loop
            return loop

        return worker_loop

    # What there is.

    def toolsets(self) -> dict[str, list[str]]:
        """Return every registered tool by the toolset it was registered in."""
        found: dict[str, list[str]] = {}
        for name, toolset in self._registry.get_tool_to_toolset_map().items():
            found.setdefault(toolset, []).append(name)
        return {toolset: sorted(names) for toolset, names in found.items()}

    def requirements(self, names: Iterable[str]) -> dict[str, str]:
        """Say for tools what they need, as far as hermes-agent says so itself."""
        needs = {}
        for name in names:
            entry = self._registry.get_entry(name)
            if name in NEEDS_SKILLS:
                needs[name] = "a skill in the skills directory of legacy_home"
            elif entry is not None and entry.requires_env:
                needs[name] = f"one of the variables {', '.join(entry.requires_env)}"
        return needs

    def definitions(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the schemas of those of ``names`` whose prerequisites are met."""
        wanted = {name for name in names if name not in NEEDS_SKILLS or has_skills(self.home)}
        toolset_of = self._registry.get_tool_to_toolset_map()
        toolsets = sorted({toolset_of[name] for name in wanted if name in toolset_of})
        if not toolsets:
            return []
        found = self._model_tools.get_tool_definitions(
            enabled_toolsets=toolsets, quiet_mode=True, skip_tool_search_assembly=True
        )
        return [schema for schema in found if schema["function"]["name"] in wanted]

    # Calls.

    def call(self, tool: str, arguments: dict[str, Any], *, task: str, call: str) -> Outcome:
        """Run one call to its end; never raises."""
        try:
            result = self.raw_call(tool, arguments, task, tool_call_id=call)
        except asyncio.CancelledError:
            return _failure(f"{tool} was cancelled.")
        except BaseException as error:  # A tool that exits must not take the others with it.
            _log.exception("tool %s", tool)
            return _failure(f"{tool} failed: {type(error).__name__}: {error}")
        return normalised(result)

    def raw_call(
        self, tool: str, arguments: dict[str, Any], task: str | None, **options: Any
    ) -> Any:
        """Run one call and return whatever it returns, or raises."""
        if task is not None:
            self._terminal.register_task_env_overrides(task, dict(ISOLATION))
        return self._model_tools.handle_function_call(tool, arguments, task_id=task, **options)

    def interrupt(self, thread: int) -> None:
        """Ask the call that runs in ``thread`` to end."""
        self._interrupted.add(thread)
        self._interrupts.set_interrupt(True, thread)
        loop = self._loops.get(thread)
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self._cancel_tasks, thread, loop)

    def clear_interrupt(self, thread: int) -> None:
        """Take an interrupt back; the next call in that thread is not meant."""
        self._interrupted.discard(thread)
        self._interrupts.set_interrupt(False, thread)

    def _cancel_tasks(self, thread: int, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the thread's loop, maybe only with the next call: then it does nothing."""
        if thread in self._interrupted:
            for task in asyncio.all_tasks(loop):
                task.cancel()

    # Cleaning up.

    def end(self, task: str) -> None:
        """Free what a rollout holds: processes, environment, browser, override."""
        for step in self._steps(task):
            try:
                step()
            except BaseException:  # The other steps must run.
                _log.exception("cleaning up after %s", task)

    def _steps(self, task: str) -> list[Callable[[], Any]]:
        registry = importlib.import_module("tools.process_registry").process_registry
        steps: list[Callable[[], Any]] = [
            lambda: registry.kill_all(task),
            lambda: self._terminal.cleanup_vm(task),
        ]
        browser = sys.modules.get("tools.browser_tool")
        if browser is not None:
            steps.append(lambda: browser.cleanup_browser(task))
        return [*steps, lambda: self._terminal.clear_task_env_overrides(task)]

    def end_all(self) -> None:
        """Free every environment and every browser, whoever they belong to."""
        self._terminal.cleanup_all_environments()
        browser = sys.modules.get("tools.browser_tool")
        if browser is not None:
            browser.cleanup_all_browsers()


def _replace(module: ModuleType, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put a wrapper in the place of a module's function."""
    original = getattr(module, name, None)
    if original is None:
        version = importlib.metadata.version("hermes-agent")
        raise ImportError(
            f"hermes-agent {version} has no {module.__name__}.{name}: its tools cannot be kept "
            "apart from this machine. Install hermes-agent 0.19.0."
        )
    setattr(module, name, wrap(original))


def _failure(error: str) -> Outcome:
    return Outcome(json.dumps({"error": error}, ensure_ascii=False), error=error)


def normalised(result: Any) -> Outcome:
    """Return a tool's result in one shape: text, JSON objects and content parts are all legal."""
    if isinstance(result, dict) and result.get("_multimodal") and "content" in result:
        return Outcome(json.dumps(result["content"], ensure_ascii=False), is_parts=True)
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False, default=str)
    if len(result) > MAX_CONTENT_CHARS:
        total = len(result)
        result = result[:MAX_CONTENT_CHARS] + f"\n[cut off: {total:,} characters]"
    return Outcome(result, error=_error_in(result))


def _error_in(text: str) -> str | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    error = value.get("error")
    return str(error) if error else None
