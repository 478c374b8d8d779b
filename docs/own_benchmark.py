"""A benchmark in one file: copy it, change it, run it.

python -m hermes_rl evaluate own_benchmark.py:CsvTotals --oracle
python -m hermes_rl evaluate own_benchmark.py:CsvTotals --nop
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hermes_rl import (
    AgentResult,
    Deadlines,
    EnvConfig,
    Reward,
    SandboxSpec,
    Solution,
    ToolContext,
)

SHOPS = ("Aarhus", "Bergen", "Turku")


@dataclass
class CsvTotal:
    """Add up one shop's sales."""

    id: str
    prompt: str
    shop: str
    sales: list[tuple[str, int]]
    metadata: dict[str, str]
    # Optional, with defaults; see hermes_rl.tasks.describe for all of them.
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    deadlines: Deadlines = field(default_factory=lambda: Deadlines(agent_s=300, reward_s=60))

    @property
    def total(self) -> int:
        """The right answer."""
        return sum(amount for shop, amount in self.sales if shop == self.shop)

    @property
    def solution(self) -> Solution:
        """What --oracle runs: proof that the task can be solved."""
        program = f'$1 == "{self.shop}" {{s += $2}} END {{print s}}'
        return Solution(command=f"awk -F, '{program}' sales.csv > total")

    async def setup(self, ctx: ToolContext) -> None:
        """Prepare the sandbox before the agent starts."""
        rows = "".join(f"{shop},{amount}\n" for shop, amount in self.sales)
        await ctx.write_file("sales.csv", f"shop,amount\n{rows}")

    async def reward(self, result: AgentResult, ctx: ToolContext) -> Reward:
        """Score what the agent left, in its own sandbox; 1 is a pass."""
        seen = await ctx.read_file("total")
        answer = str(seen.get("content", "")).strip()
        return Reward(float(answer == str(self.total)), evidence={"answer": answer[:100]})


class CsvTotals:
    """The task set.

    Args:
        seed: Makes other tasks (--env.seed). A parameter may have the name of any setting.
    """

    name = "csv-totals"
    version = "1"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    @classmethod
    def config_init(cls) -> EnvConfig:
        """Return settings that users may change by YAML and flags."""
        return EnvConfig(enabled_toolsets=["terminal", "file"], max_agent_turns=20)

    async def load(self) -> list[CsvTotal]:
        """Return the tasks. What blocks belongs into a thread."""
        rng = random.Random(self._seed)
        return [self._task(rng, number) for number in range(6)]

    def _task(self, rng: random.Random, number: int) -> CsvTotal:
        shop, rows = SHOPS[number % 3], (10, 1000)[number % 2]
        return CsvTotal(
            id=f"total-{number}",
            prompt=f"Add up the amounts of {shop} in sales.csv and write the sum to total.",
            shop=shop,
            sales=[(rng.choice(SHOPS), rng.randint(1, 99)) for _ in range(rows)],
            metadata={"category": shop, "difficulty": "hard" if rows > 10 else "easy"},
        )
