"""Run tool-calling language-model agents in sandboxes, score them, and train on them.

The names below are the public ones; each is imported when it is first used, so importing the
package costs next to nothing and pulls no optional dependency.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_rl.agent import HermesAgentLoop
    from hermes_rl.atropos.base_env import HermesAgentBaseEnv
    from hermes_rl.atropos.config import HermesAgentEnvConfig
    from hermes_rl.benchmarks.tblite.tblite_env import TBLiteEvalEnv
    from hermes_rl.benchmarks.terminalbench_2.terminalbench2_env import TerminalBench2EvalEnv
    from hermes_rl.benchmarks.yc_bench.yc_bench_env import YCBenchEvalEnv
    from hermes_rl.config import EnvConfig, ServerConfig
    from hermes_rl.context import SyncToolContext, ToolContext
    from hermes_rl.engine import RolloutEngine
    from hermes_rl.envs.hermes_swe_env.hermes_swe_env import HermesSweEnv
    from hermes_rl.envs.terminal_test_env.terminal_test_env import TerminalTestEnv
    from hermes_rl.errors import HermesRLError
    from hermes_rl.rollout import RolloutResult
    from hermes_rl.sandbox import HealthCheck, SandboxSpec
    from hermes_rl.stream import RolloutHandle, RolloutStream
    from hermes_rl.tasks import Deadlines, Solution, Task, TaskSet
    from hermes_rl.types import AgentResult, Reward, StopReason, ToolError, Usage

__version__ = "0.1.0"

__all__ = [
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

_HOMES = {
    "hermes_rl.agent": ("HermesAgentLoop",),
    "hermes_rl.config": ("EnvConfig", "ServerConfig"),
    "hermes_rl.context": ("SyncToolContext", "ToolContext"),
    "hermes_rl.engine": ("RolloutEngine",),
    "hermes_rl.errors": ("HermesRLError",),
    "hermes_rl.rollout": ("RolloutResult",),
    "hermes_rl.sandbox": ("HealthCheck", "SandboxSpec"),
    "hermes_rl.stream": ("RolloutHandle", "RolloutStream"),
    "hermes_rl.tasks": ("Deadlines", "Solution", "Task", "TaskSet"),
    "hermes_rl.types": ("AgentResult", "Reward", "StopReason", "ToolError", "Usage"),
}
_ATROPOS_HOMES = {
    "hermes_rl.atropos.base_env": ("HermesAgentBaseEnv",),
    "hermes_rl.atropos.config": ("HermesAgentEnvConfig",),
    "hermes_rl.benchmarks.tblite.tblite_env": ("TBLiteEvalEnv",),
    "hermes_rl.benchmarks.terminalbench_2.terminalbench2_env": ("TerminalBench2EvalEnv",),
    "hermes_rl.benchmarks.yc_bench.yc_bench_env": ("YCBenchEvalEnv",),
    "hermes_rl.envs.hermes_swe_env.hermes_swe_env": ("HermesSweEnv",),
    "hermes_rl.envs.terminal_test_env.terminal_test_env": ("TerminalTestEnv",),
}
"""Modules that import atroposlib."""
_ATROPOS = {name for names in _ATROPOS_HOMES.values() for name in names}
_HOMES |= _ATROPOS_HOMES
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name from its module at first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ATROPOS and importlib.util.find_spec("atroposlib") is None:
        from hermes_rl.errors import MissingExtra

        raise MissingExtra.of(f"hermes_rl.{name}", "atropos")
    value: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
