"""The public names of the package, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hermes_rl

PUBLIC = [
    "AgentResult",
    "Deadlines",
    "EnvConfig",
    "HealthCheck",
    "HermesAgentLoop",
    "HermesRLError",
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
    "Task",
    "TaskSet",
    "ToolContext",
    "ToolError",
    "Usage",
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


def test_using_every_public_name_pulls_no_optional_dependency() -> None:
    code = (
        "import sys, hermes_rl\n"
        "for name in hermes_rl.__all__: getattr(hermes_rl, name)\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_importing_the_package_takes_less_than_300_ms() -> None:
    """CPU time, the best of three: the machine may be busy."""
    code = "import time; t = time.process_time(); import hermes_rl; print(time.process_time() - t)"
    assert min(float(run_python(code)) for _ in range(3)) < 0.3
