"""``tblite``: OpenThoughts-TBLite, 100 tasks in the layout of Terminal-Bench 2.

By difficulty 40 easy, 26 medium, 26 hard, 8 extreme. Everything else is as in
:mod:`hermes_rl.benchmarks.terminalbench_2.task_set`.
"""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.benchmarks.task_rows import RowDefaults
from hermes_rl.benchmarks.terminalbench_2.task_set import TerminalBench2

__all__ = ["TBLite"]


class TBLite(TerminalBench2):
    """The task set."""

    name = "tblite"
    edition: ClassVar[str] = "1"
    dataset: ClassVar[str] = "NousResearch/openthoughts-tblite"
    row_defaults: ClassVar[RowDefaults] = RowDefaults(agent_s=1200.0, test_s=600.0)
