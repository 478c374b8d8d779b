"""TBLite as an Atropos environment: ``evaluate``, but also ``process``, ``serve``."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.benchmarks.tblite.task_set import TBLite
from hermes_rl.benchmarks.terminalbench_2.task_set import TerminalBench2
from hermes_rl.benchmarks.terminalbench_2.terminalbench2_env import TerminalBench2EvalEnv

__all__ = ["TBLiteEvalEnv"]


class TBLiteEvalEnv(TerminalBench2EvalEnv):
    """The same on another data set."""

    name = TBLite.name
    tasks_cls: ClassVar[type[TerminalBench2]] = TBLite


if __name__ == "__main__":
    from hermes_rl.benchmarks.tblite.tblite_env import TBLiteEvalEnv as Environment

    Environment.cli()
