"""``hermes-swe``: write a Python function; hidden tests run in the same sandbox.

Rows as in ``bigcode/humanevalpack`` (configuration ``python``): ``prompt`` (signature and
docstring), ``test``, ``entry_point`` and optionally ``task_id``, ``test_setup``,
``canonical_solution``. Other data sets need ``prompt`` (or the configured field) and ``test``.

Reward: 1.0 if the tests pass, 0.1 if they do not but the agent created the file it was asked
for, else 0.0. The tests are written to a file in the sandbox only when the agent is done, run from
there under their own deadline, and removed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes_rl.envs.dataset import load_rows, require_columns
from hermes_rl.errors import RewardError
from hermes_rl.tasks import Solution
from hermes_rl.types import AgentResult, Reward

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["DATASET", "HermesSwe", "SweTask", "swe_task"]

DATASET = "bigcode/humanevalpack"
CONFIG_NAME = "python"
"""Configuration of the default data set."""
FILE = "solution.py"
PARTIAL = 0.1
TEST_S = 60
"""Seconds for the hidden tests; those of the default data set take under one."""
_INSTRUCTION = """\
Write the Python function described below to a file {file} in the current directory. The file \
must define exactly that function (helpers are fine) and do nothing else when it is imported. \
Run it on a few examples of your own before you finish.

{prompt}
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class SweTask:
    """Write a function so that ``test`` passes."""

    id: str
    prompt: str
    test: str
    entry_point: str | None = None
    reference: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def solution(self) -> Solution | None:
        """The data set's own solution, if it has one."""
        if self.reference is None:
            return None
        return Solution(command=f"printf %s {shlex.quote(self.reference)} > {FILE}")

    def test_file(self) -> str:
        """Return the program that exits 0 if the solution is right."""
        names = f"from solution import {self.entry_point}\n" if self.entry_point else ""
        return f"from solution import *\n{names}\n{self.test}\n"

    async def reward(self, result: AgentResult, ctx: ToolContext) -> Reward:
        """Run the hidden tests beside the agent's file.

        Raises:
            RewardError: The sandbox has no python3 to run them with.
        """
        seen = await ctx.read_file(FILE)
        if seen.get("error"):
            return Reward(0.0, evidence={"file": "missing"})
        # A directory of its own: nothing the agent left beside its file is imported by the tests.
        made = await ctx.terminal("d=$(mktemp -d) && cp solution.py $d/ && echo $d")
        folder = made["output"].strip()
        written = await ctx.write_file(f"{folder}/hidden_test.py", self.test_file())
        if made["exit_code"] or (written.get("error")):
            raise RewardError(f"The hidden tests could not be written: {made} {written}")
        run = await ctx.terminal(
            f"cd {shlex.quote(folder)} && python3 hidden_test.py", timeout=TEST_S
        )
        await ctx.terminal(f"rm -rf {shlex.quote(folder)}")
        if run["exit_code"] == 127:
            raise RewardError("The sandbox has no python3; use an image that has.")
        passed = run["exit_code"] == 0
        evidence = {"exit_code": run["exit_code"], "output": run["output"][-2000:]}
        return Reward(1.0 if passed else PARTIAL, evidence=evidence)


def swe_task(row: Mapping[str, Any], index: int, prompt_field: str = "prompt") -> SweTask:
    """Return a row of the data set as a task."""
    reference = row.get("canonical_solution")
    return SweTask(
        id=str(row.get("task_id") or f"swe-{index:04d}").replace("/", "-"),
        prompt=_INSTRUCTION.format(file=FILE, prompt=row[prompt_field]),
        test=f"{row.get('test_setup') or ''}\n{row['test']}",
        entry_point=row.get("entry_point") or None,
        reference=f"{row.get('declaration') or row['prompt']}{reference}" if reference else None,
        metadata={"split": row.get("split")} if row.get("split") else {},
    )


class HermesSwe:
    """The task set.

    Args:
        dataset_name: Hub name or local file; None = the default data set.
        dataset_split: Its split; None = ``test``, the only one of the default data set.
        prompt_field: Column of the prompt.
    """

    name = "hermes-swe"

    def __init__(
        self,
        dataset_name: str | None = None,
        dataset_split: str | None = None,
        prompt_field: str = "prompt",
    ) -> None:
        self._dataset = dataset_name or DATASET
        self._split = dataset_split or "test"
        self._prompt_field = prompt_field

    async def load(self) -> Sequence[SweTask]:
        """Load the rows."""
        config_name = CONFIG_NAME if self._dataset == DATASET else None
        rows = await load_rows(self._dataset, split=self._split, config_name=config_name)
        require_columns(rows, [self._prompt_field, "test"], self._dataset)
        return [swe_task(row, index, self._prompt_field) for index, row in enumerate(rows)]
