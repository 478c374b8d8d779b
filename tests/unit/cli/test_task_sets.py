import textwrap
from pathlib import Path

import pytest

from hermes_rl.cli.task_sets import find_tasks, task_set_names
from hermes_rl.config import EnvConfig
from hermes_rl.errors import ConfigError, TaskError, UnknownName
from hermes_rl.task_selection import load_wanted

GOOD = """
    from __future__ import annotations
    from dataclasses import dataclass
    from hermes_rl.config import EnvConfig, ServerConfig
    import neighbour

    @dataclass
    class One:
        id: str = "one"
        prompt: str = neighbour.PROMPT
        async def reward(self, result, ctx):
            return 1.0

    class Many:
        name = "many"
        def __init__(self, seed=7, dataset_name="own"):
            self.seed, self.dataset_name = seed, dataset_name
        async def load(self):
            return [One()]
        @classmethod
        def config_init(cls):
            return EnvConfig(max_agent_turns=9), ServerConfig(model_name="m")

    class Nameless:
        async def load(self):
            return []

    class Raises:
        name = "raises"
        def __init__(self):
            raise KeyError("no data")

    class BadInit:
        name = "bad"
        config_init = staticmethod(lambda: 5)
        async def load(self):
            return []
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("PROMPT = 'do it'\n")
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(GOOD))
    return path


async def test_a_class_in_a_file_is_found_with_its_neighbours(module: Path) -> None:
    source = find_tasks(f"{module}:Many")
    tasks = await source.make(EnvConfig()).load()
    assert [task.prompt for task in tasks] == ["do it"]


def test_the_maker_gets_the_fields_it_names_if_they_were_set(module: Path) -> None:
    source = find_tasks(f"{module}:Many")
    unset = source.make(EnvConfig())
    assert (unset.seed, unset.dataset_name) == (7, "own")  # type: ignore[attr-defined]
    given = source.make(EnvConfig(seed=3, attempts=2))
    assert (given.seed, given.dataset_name) == (3, "own")  # type: ignore[attr-defined]


def test_config_init_is_a_layer(module: Path) -> None:
    init = find_tasks(f"{module}:Many").init
    assert init.env == {"max_agent_turns": 9}
    assert init.servers == ({"model_name": "m"},)
    assert find_tasks("terminal-test").init.servers is None


def test_the_spec_finds_the_same_tasks_from_elsewhere(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(module.parent)
    spec = find_tasks("mine.py:Many").spec
    monkeypatch.chdir("/")
    assert find_tasks(spec).make(EnvConfig()).name == "many"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Meny", "'Meny'.*'Many'"),
        ("One", "no load"),
        ("Nameless", "has no name"),
        ("Raises", "cannot be made: KeyError: 'no data' .*mine.py:"),
        ("BadInit", "must return an EnvConfig"),
    ],
)
def test_a_class_that_is_no_task_set_is_a_clear_error(
    module: Path, name: str, message: str
) -> None:
    with pytest.raises((TaskError, ConfigError), match=message):
        find_tasks(f"{module}:{name}").make(EnvConfig())


@pytest.mark.parametrize(
    ("content", "message"),
    [("def x(:", "SyntaxError"), ("import nowhere_at_all", "ModuleNotFoundError.*nowhere_at_all")],
)
def test_a_file_that_cannot_be_imported_is_a_clear_error(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(TaskError, match=message):
        find_tasks(f"{tmp_path}/bad.py:X")


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("terminal-tset", UnknownName, "Did you mean 'terminal-test'"),
        ("no/such/dir", TaskError, "no directory of tasks"),
        ("mine.py", TaskError, "mine.py:Class"),
        ("gone.py:X", TaskError, "does not exist"),
    ],
)
def test_what_names_nothing_is_a_clear_error(
    spec: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        find_tasks(spec)


def test_terminal_test_is_registered() -> None:
    assert "terminal-test" in task_set_names()
    assert find_tasks("terminal-test").make(EnvConfig(seed=4)).version.endswith("seed4")  # type: ignore[attr-defined]


def test_a_directory_is_a_task_set_named_after_it(tmp_path: Path) -> None:
    assert find_tasks(str(tmp_path)).make(EnvConfig()).name == tmp_path.name


@pytest.mark.parametrize(
    "source", ["import sys\nsys.exit(3)", "def Many(seed=0):\n    raise SystemExit(3)"]
)
def test_a_file_that_exits_is_an_error_that_says_so(tmp_path: Path, source: str) -> None:
    path = tmp_path / "exits.py"
    path.write_text(source)
    with pytest.raises(TaskError, match=r"SystemExit: 3"):
        find_tasks(f"{path}:Many").make(EnvConfig())


def test_an_environment_of_a_class_in_a_file_has_the_class_name(module: Path) -> None:
    pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")
    from hermes_rl.cli.environments import find_environment

    assert find_environment(f"{module}:Many").name == "Many"
    assert find_environment("terminal-bench-2").name == "terminal-bench-2"


def test_a_file_is_imported_once_whoever_asks(module: Path) -> None:
    pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")
    from hermes_rl.cli.environments import find_environment

    log = module.with_name("imports.log")
    module.write_text(f"{module.read_text()}\nopen({str(log)!r}, 'a').write('x')\n")
    find_environment(f"{module}:Many")
    find_tasks(f"{module}:Many")
    assert log.read_text() == "x"


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("def load(self): return []", "must be 'async def'"),
        ("async def load(self): return None", "must return its tasks, not NoneType"),
        ("async def load(self): raise SystemExit(6)", r"failed: SystemExit: 6 \(.*mine.py:3\)"),
    ],
)
async def test_a_load_that_gives_no_tasks_is_an_error_that_says_why(
    tmp_path: Path, load: str, said: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"class Mine:\n    name = 'mine'\n    {load}\n")
    task_set = find_tasks(f"{path}:Mine").make(EnvConfig())
    with pytest.raises(TaskError, match=f"load.. of mine {said}"):
        await load_wanted(task_set)


def test_a_registered_environment_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")
    from hermes_rl.cli.environments import find_environment

    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[hermes_rl.environments]\nmine = math:pi\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TaskError, match="'mine' is none: math:pi is no subclass of Hermes"):
        find_environment("mine")
