"""An environment that keeps account of its groups on disk; every tenth reward raises."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio

from hermes_rl.atropos.base_env import HermesAgentBaseEnv

FINISHED = Path("finished.txt")
EVALUATIONS = Path("evaluations.txt")
EVALUATION_S = 1.5


def note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


class ChaosEnv(HermesAgentBaseEnv):
    """Items are numbered; a finished group is written down before it is sent."""

    name = "chaos"

    async def setup(self) -> None:
        self.numbers = itertools.count()
        self.rewards = itertools.count(1)

    async def get_next_item(self) -> Any:
        return {"id": f"item-{next(self.numbers)}"}

    def format_prompt(self, item: Any) -> str:
        return str(item["id"])

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        seen = await ctx.terminal("cat f")
        if next(self.rewards) % 10 == 0:
            raise RuntimeError("every tenth reward raises")
        return float(seen["output"].strip() == "hi")

    async def postprocess_histories(self, trajectories: Any) -> Any:
        note(FINISHED, trajectories["messages"][0][0]["content"])
        return trajectories

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        note(EVALUATIONS, f"begins {self.curr_step}")
        await anyio.sleep(EVALUATION_S)
        note(EVALUATIONS, f"ends {self.curr_step}")
