"""What other packages register may fail to load; the error says whose fault it is."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hermes_rl.errors import ConfigError
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


def test_one_of_ours_names_its_extra() -> None:
    point = EntryPoint("gone", "hermes_rl.nosuch:create", "hermes_rl.backends")
    with pytest.raises(ConfigError, match=r"pip install 'hermes_rl\[gone\]'"):
        load_plugin(point, "Backend")
