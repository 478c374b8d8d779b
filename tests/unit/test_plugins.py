"""What other packages register may fail to load; the error says whose fault it is."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hermes_rl.errors import ConfigError, MissingExtra
from hermes_rl.plugins import load_plugin


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nosuch_package", "ModuleNotFoundError: No module named 'nosuch_package'"),
        ("def broken(:", "SyntaxError"),
        ("raise ValueError('not today')", "ValueError: not today"),
        ("", "AttributeError: .*has no attribute 'Mine'"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    (tmp_path / "broken_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)
    point = EntryPoint("mine", "broken_plugin:Mine", "hermes_rl.parsers")
    with pytest.raises(ConfigError, match=rf"Parser 'mine' .* from broken_plugin:Mine: {said}"):
        load_plugin(point, "Parser")


def test_a_backend_of_ours_names_its_extra() -> None:
    point = EntryPoint("modal", "hermes_rl.nosuch:create", "hermes_rl.backends")
    with pytest.raises(MissingExtra, match=r"pip install 'hermes_rl\[modal\]'\.$"):
        load_plugin(point, "Backend")


@pytest.mark.parametrize(
    ("name", "module", "group"),
    [
        ("singularity", "hermes_rl.nosuch", "hermes_rl.backends"),  # there is no such extra
        ("modal", "nosuch_package", "hermes_rl.backends"),
        ("hermes", "hermes_rl.nosuch", "hermes_rl.parsers"),
    ],
)
def test_no_extra_is_named_that_would_not_help(name: str, module: str, group: str) -> None:
    with pytest.raises(ConfigError, match="No module named") as caught:
        load_plugin(EntryPoint(name, f"{module}:create", group), "Plug-in")
    assert "pip install" not in str(caught.value)
