"""A hundred tasks: every second one takes a moment, the others a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Solution

TASKS = 100
SLOW_S = 20


@dataclass(frozen=True)
class FileAfter:
    id: str
    seconds: float
    prompt: str = "Write done to ~/out.txt"

    @property
    def sandbox(self) -> SandboxSpec:
        return SandboxSpec(image="hermes-test:latest", memory_mb=128, network="none")

    @property
    def solution(self) -> Solution:
        return Solution(command=f"sleep {self.seconds}; echo done > ~/out.txt")

    async def reward(self, result: Any, ctx: Any) -> float:
        seen = await ctx.read_file("~/out.txt")
        return float(str(seen.get("content")).strip() == "done")


class HundredTasks:
    name = "hundred-tasks"

    async def load(self) -> list[FileAfter]:
        return [FileAfter(f"task-{n:02}", SLOW_S if n % 2 else 0.1) for n in range(TASKS)]
