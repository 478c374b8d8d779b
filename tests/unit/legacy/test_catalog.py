"""Which tools there are, and what a user is told about those that are not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from hermes_rl.config import AgentFields
from hermes_rl.errors import ConfigError, UnknownName
from hermes_rl.legacy.catalog import NOTHING, Catalog, ask, ask_blocking, catalog_of, is_wanted
from hermes_rl.legacy.settings import LegacySettings, is_installed_here
from hermes_rl.plan import ToolChoice
from hermes_rl.tools import NATIVE_TOOLS

SCHEMAS = MappingProxyType(
    {
        name: {"type": "function", "function": {"name": name, "parameters": {}}}
        for name in ("web_search", "image_generate", "my_tool")
    }
)
FOUND = Catalog(
    version="0.19.0",
    schemas=SCHEMAS,
    toolsets={"mine": ["my_tool"]},
    requirements={"x_search": "one of the variables XAI_API_KEY"},
)


def names(catalog: Catalog = FOUND, **fields: Any) -> set[str]:
    return set(ToolChoice(AgentFields(**fields), catalog.availability).names("any"))


def test_by_default_there_are_the_native_tools_and_the_safe_list() -> None:
    assert names() == {*NATIVE_TOOLS, "web_search"}


def test_tools_that_act_outside_need_their_toolset_named() -> None:
    assert names(enabled_toolsets=["image_gen", "terminal"]) == {
        "image_generate",
        "terminal",
        "process",
    }
    assert names(enabled_toolsets=["mine"]) == {"my_tool"}
    assert names(enabled_toolsets=["all"]) == {*NATIVE_TOOLS, *SCHEMAS}
    assert names(enabled_toolsets=["all"], disabled_toolsets=["mine", "file", "image_gen"]) == {
        "terminal",
        "process",
        "todo",
        "web_search",
    }


def test_a_composite_takes_what_there_is() -> None:
    assert names(enabled_toolsets=["safe"]) == {"web_search", "image_generate"}


@pytest.mark.parametrize(
    ("catalog", "toolset", "said"),
    [
        (NOTHING, "web", r"not installed: pip install 'hermes_rl\[hermes\]'.*legacy_python"),
        (FOUND, "x_search", "XAI_API_KEY"),
        (FOUND, "vision", "API keys or programs"),
        (FOUND, "code_execution", "use terminal, which runs in the sandbox"),
        (NOTHING, "memory", "keeps what one rollout said"),
        (FOUND, "clarify", "asks a person"),
    ],
)
def test_a_named_toolset_that_cannot_be_had_says_why(
    catalog: Catalog, toolset: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        names(catalog, enabled_toolsets=["terminal", toolset])


def test_an_unknown_toolset_lists_the_plug_ins_too() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'mine'"):
        names(enabled_toolsets=["mime"])


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, True),
        ({"enabled_toolsets": []}, False),
        ({"enabled_toolsets": ["terminal", "file", "todo"]}, False),
        ({"enabled_toolsets": ["web"]}, True),
        ({"enabled_toolsets": ["somebodys"]}, True),
        ({"distribution": "terminal_only"}, False),
        ({"distribution": "terminal_web"}, True),
    ],
)
def test_hermes_agent_is_asked_only_where_its_tools_may_be_wanted(
    fields: Any, wanted: bool
) -> None:
    assert is_wanted(AgentFields(**fields)) is wanted


@pytest.mark.skipif(is_installed_here(), reason="hermes-agent is installed here")
async def test_without_hermes_agent_nothing_is_started() -> None:
    assert await catalog_of(AgentFields()) is NOTHING


async def test_an_interpreter_without_hermes_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not installed there.*pip install hermes-agent"):
        await ask(LegacySettings(python=sys.executable))
    with pytest.raises(ConfigError, match="not installed there"):
        ask_blocking(LegacySettings(python=sys.executable))


async def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"legacy_python .*/none is no program"):
        await ask(LegacySettings(python=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="it ended at once"):
        await ask(LegacySettings(python="/bin/false"))


def test_thread_mode_cannot_use_another_interpreter() -> None:
    with pytest.raises(ConfigError, match="legacy_workers 0"):
        LegacySettings.of(AgentFields(legacy_python="/x", legacy_workers=0))


@pytest.mark.parametrize(
    ("threads", "workers", "each"),
    [(128, 2, [64, 64]), (5, 2, [3, 2]), (1, 2, [1]), (7, 0, [7])],
)
def test_threads_are_spread_over_the_workers(threads: int, workers: int, each: list[int]) -> None:
    config = AgentFields(tool_pool_size=threads, legacy_workers=workers)
    settings = LegacySettings.of(config)
    spread = [settings.threads_of(number) for number in range(max(1, settings.workers))]
    assert spread == each
