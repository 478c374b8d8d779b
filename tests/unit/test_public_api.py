"""The public names of the package, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hermes_rl

PUBLIC = [
    "AgentResult",
    "Deadlines",
    "EnvConfig",
    "HealthCheck",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "HermesAgentLoop",
    "HermesRLError",
    "HermesSweEnv",
    "Reward",
    "RolloutEngine",
    "RolloutHandle",
    "RolloutResult",
    "RolloutStream",
    "SandboxSpec",
    "ServerConfig",
    "Solution",
    "StopReason",
    "SyncToolContext",
    "TBLiteEvalEnv",
    "Task",
    "TaskSet",
    "TerminalBench2EvalEnv",
    "TerminalTestEnv",
    "ToolContext",
    "ToolError",
    "Usage",
    "YCBenchEvalEnv",
]
HEAVY = ["atroposlib", "transformers", "wandb", "datasets", "modal", "numpy", "torch"]


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert hermes_rl.__all__ == PUBLIC == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    value = getattr(hermes_rl, name)
    assert value.__name__ == name
    assert name in dir(hermes_rl)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = hermes_rl.Nonsense  # type: ignore[attr-defined, unused-ignore]


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys, hermes_rl; print([m for m in sys.modules if m.startswith('hermes_rl.')])"
    assert run_python(code) == "[]"


def test_using_every_name_but_those_of_atropos_pulls_no_optional_dependency() -> None:
    code = (
        "import sys, hermes_rl\n"
        "for name in set(hermes_rl.__all__) - hermes_rl._ATROPOS: getattr(hermes_rl, name)\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_importing_the_package_takes_less_than_300_ms() -> None:
    """CPU time, the best of three: the machine may be busy."""
    code = "import time; t = time.process_time(); import hermes_rl; print(time.process_time() - t)"
    assert min(float(run_python(code)) for _ in range(3)) < 0.3


def test_without_atroposlib_its_names_say_which_extra_to_install() -> None:
    code = (
        "import sys; sys.modules['atroposlib'] = None\n"
        "import hermes_rl\n"
        "try: hermes_rl.HermesAgentBaseEnv\n"
        "except hermes_rl.HermesRLError as error: print(error)\n"
    )
    assert "pip install 'hermes_rl[atropos]'" in run_python(code)


def test_a_folder_of_the_same_name_does_not_hide_the_program(tmp_path: Path) -> None:
    (tmp_path / "hermes_rl").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "hermes_rl", "list", "tasks"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "terminal-test" in done.stdout
