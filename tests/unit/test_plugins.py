"""What other packages register may fail to load; the error says whose fault it is."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hermes_rl.errors import ConfigError, MissingExtra, NotSetUp
from hermes_rl.plugins import load_plugin, make_plugin
from hermes_rl.sandbox import BackendSettings, open_backend


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


MAKERS = {
    "CONSTANT = 7": ("CONSTANT", "TypeError: 'int' object is not callable"),
    "def make(): raise ValueError('not today')": ("make", "ValueError: not today"),
    "def make(): raise SystemExit(4)": ("make", "SystemExit: 4"),
    "def make(one): ...": ("make", "TypeError: make() missing 1 required"),
    "def make(): return None": ("make", "made a NoneType, which lacks name, parse"),
    "async def make(): ...": ("make", "made a coroutine, which lacks name, parse"),
    "class Half:\n    name = 'half'": ("Half", "made a Half, which lacks parse"),
}


@pytest.mark.parametrize("source", MAKERS, ids=[name for name, _ in MAKERS.values()])
def test_a_plugin_that_makes_nothing_of_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    name, said = MAKERS[source]
    (tmp_path / "useless_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "useless_plugin", raising=False)
    point = EntryPoint("mine", f"useless_plugin:{name}", "hermes_rl.parsers")
    with pytest.raises(ConfigError, match=f"^Parser 'mine' .* useless_plugin:{name}") as caught:
        make_plugin(point, "Parser", members=("name", "parse"))
    assert said in str(caught.value)


def test_an_error_of_ours_that_a_plugin_raises_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "choosy_plugin.py").write_text(
        "from hermes_rl.errors import NotSetUp\ndef make(): raise NotSetUp('set X')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotSetUp, match=r"^set X$"):
        make_plugin(EntryPoint("x", "choosy_plugin:make", "g"), "Parser", members=())


def _install(site: Path, package: str, entry_points: str) -> None:
    """Put a package's metadata where an installer would."""
    folder = site / f"{package.replace('-', '_')}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(entry_points)


def test_a_name_that_two_packages_claim_is_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, "other-sandboxes", "[hermes_rl.backends]\nlocal = other:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="Uninstall all but one") as caught:
        open_backend("local", BackendSettings(run_id="test"))
    assert "Backend 'local' is claimed by hermes_rl (hermes_rl.backends.local:create" in str(
        caught.value
    )
    assert "and other-sandboxes (other:create)" in str(caught.value)


def test_a_broken_plugin_says_which_package_it_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, "my-sandboxes", "[hermes_rl.backends]\nmine = no_such_module:create\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"belongs to the package my-sandboxes: mend that"):
        open_backend("mine", BackendSettings(run_id="test"))
