"""A small environment for tests: write a word to a file."""

from __future__ import annotations

from typing import Any

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.config import ServerConfig


class GreetingEnv(HermesAgentBaseEnv):
    name = "greeting"

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[ServerConfig]]:
        return HermesAgentEnvConfig(enabled_toolsets=["terminal"], max_agent_turns=3), [
            ServerConfig(server_type="nop")
        ]

    async def setup(self) -> None:
        self.words = iter([f"word{n}" for n in range(1000)])

    async def get_next_item(self) -> Any:
        word = next(self.words, None)
        return None if word is None else {"id": word, "prompt": f"Write {word} to ~/f"}

    def format_prompt(self, item: Any) -> str:
        return str(item["prompt"])

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        seen = await ctx.terminal("cat ~/f")
        return 1.0 if item["id"] in seen["output"] else 0.0

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items([{"id": "e", "prompt": "x"}])


if __name__ == "__main__":
    GreetingEnv.cli()
