"""docs/migration.md: every row points at something that is there."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.old_names import OLD_MODULES
from hermes_rl.types import ToolError

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
ROWS = [
    (old, new)
    for old, new in re.findall(r"^\| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)
    if old not in ("old", "---")
]


def resolve(path: str) -> object:
    module, _, attributes = path.partition(":")
    value: object = importlib.import_module(module)
    for name in filter(None, attributes.split(".")):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(("old", "new"), ROWS, ids=lambda cell: str(cell)[:40])
def test_the_successor_is_there(old: str, new: str) -> None:
    (first, *_) = re.findall(r"`([^`]+)`", new) or [""]
    if first.startswith("hermes_rl/") or first.startswith("benchmarks/"):
        assert (ROOT / first).is_file()
    elif first.startswith("hermes_rl"):
        assert resolve(first) is not None
    else:
        assert new.startswith(("gone: ", "the same"))


def test_the_table_is_long_enough_to_be_whole() -> None:
    assert len(ROWS) > 50


def test_old_modules_of_the_table_are_importable_under_their_old_names() -> None:
    named = {old.strip("`") for old, _ in ROWS if old.startswith("`environments.")}
    assert named <= OLD_MODULES.keys()


def test_the_table_names_every_old_module() -> None:
    named = {old.strip("`") for old, _ in ROWS}
    packages = {name for name in OLD_MODULES if any(m.startswith(f"{name}.") for m in OLD_MODULES)}
    assert OLD_MODULES.keys() - packages <= named


def test_the_table_has_the_fields_of_a_result_and_of_a_tool_error() -> None:
    named = {old.strip("`") for old, _ in ROWS}
    for name in ("messages", "managed_state", "turns_used", "finished_naturally", "tool_errors"):
        assert f"AgentResult.{name}" in named
    for field in dataclasses.fields(ToolError):
        assert f"ToolError.{field.name}" in named


def test_named_fields_exist() -> None:
    section = TEXT.split("## Configuration fields")[1]
    named = set(re.findall(r"`([a-z_]+)`", section))
    assert named <= HermesAgentEnvConfig.model_fields.keys()
    assert len(named) >= 16
