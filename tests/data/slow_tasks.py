"""A task set for tests: quick tasks first, then slow ones; each writes one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes_rl.tasks import Solution

QUICK = 6
SLOW = 12


@dataclass(frozen=True)
class Slow:
    id: str
    seconds: float
    prompt: str = "Write done to ~/out.txt"

    @property
    def metadata(self) -> dict[str, Any]:
        return {"category": "slow" if self.seconds > 1 else "quick"}

    @property
    def solution(self) -> Solution:
        return Solution(command=f"sleep {self.seconds}; echo done > ~/out.txt")

    async def reward(self, result: Any, ctx: Any) -> float:
        seen = await ctx.read_file("~/out.txt")
        return float(str(seen.get("content")).strip() == "done")


class SlowTasks:
    """``dataset_name`` is the number of seconds that a slow task takes."""

    name = "slow-tasks"

    def __init__(self, dataset_name: str = "3") -> None:
        self.seconds = float(dataset_name)

    async def load(self) -> list[Slow]:
        quick = [Slow(f"quick-{number}", 0.05) for number in range(QUICK)]
        return [*quick, *(Slow(f"slow-{number}", self.seconds) for number in range(SLOW))]
