"""As many tasks as asked for, each with a Docker sandbox; never solved, always at work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hermes_rl.sandbox import SandboxSpec


@dataclass(frozen=True)
class Busy:
    id: str
    prompt: str

    @property
    def sandbox(self) -> SandboxSpec:
        return SandboxSpec(image="hermes-test:latest", memory_mb=256, network="none")

    async def reward(self, result: Any, ctx: Any) -> float:
        return 0.0


class BusyTasks:
    """``dataset_name`` is the number of tasks; a prompt is the sandbox's name."""

    name = "busy-tasks"

    def __init__(self, dataset_name: str = "12") -> None:
        self.count = int(dataset_name)

    async def load(self) -> list[Busy]:
        return [Busy(f"task-{number:03}", f"box-{number:03}") for number in range(self.count)]
