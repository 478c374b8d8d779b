"""A quick environment with exact tokens, for tests of ``serve``: no model, no processes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.protocol import Sampling
from hermes_rl.testing.fake_sandbox import FakeBackend
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence, Usage


class TokenModel:
    """Says one word; its session holds the exact tokens of that."""

    name = "tokens"
    context_tokens = 4096

    def __init__(self, *, length: int = 6, delay_s: float = 0.0) -> None:
        self.length = length
        self.delay_s = delay_s
        self.fail: Callable[[], Exception | None] = lambda: None

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[_Session]:
        yield _Session(self, random.Random(seed))


class _Session:
    def __init__(self, model: TokenModel, rng: random.Random) -> None:
        self.sequences: list[TokenSequence] = []
        self._model = model
        self._rng = rng

    async def complete(self, messages: Sequence[Message]) -> Completion:
        await anyio.sleep(self._model.delay_s)
        error = self._model.fail()
        if error is not None:
            raise error
        half = self._model.length // 2
        prompt, sampled = list(range(half)), [self._rng.randrange(100) for _ in range(half)]
        self.sequences = [
            TokenSequence(
                prompt + sampled,
                [-100] * half + sampled,
                [1.0] * half + [-0.5] * half,
                {"finish_reason": "stop"},
            )
        ]
        return Completion(
            message={"role": "assistant", "content": str(sampled)}, usage=Usage(requests=1)
        )


class NumbersEnv(HermesAgentBaseEnv):
    """Items are numbers; the reward depends on what was sampled."""

    name = "numbers"

    def __init__(self, config: HermesAgentEnvConfig, servers: Any = None) -> None:
        super().__init__(config, servers)
        self.given = 0
        self.evaluated_at: list[int] = []
        self.evaluation_s = 0.0

    async def get_next_item(self) -> Any:
        self.given += 1
        return {"id": f"item-{self.given}"}

    def format_prompt(self, item: Any) -> str:
        return f"Say something about {item['id']}."

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        return float(
            len(result.messages[-1]["content"]) + sum(result.managed_state["nodes"][0]["tokens"])
        )

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        await anyio.sleep(self.evaluation_s)
        self.evaluated_at.append(self.curr_step)


def config_for(url: str, **values: Any) -> HermesAgentEnvConfig:
    settings = {
        "rollout_server_url": url,
        "group_size": 2,
        "use_wandb": False,
        "max_num_workers": 4,
        "total_steps": 3,
        "steps_per_eval": -1,
        "enabled_toolsets": [],
        "rollout_retries": 0,
    }
    return HermesAgentEnvConfig(**settings | values)


@asynccontextmanager
async def opened(
    config: HermesAgentEnvConfig, model: TokenModel | None = None
) -> AsyncIterator[NumbersEnv]:
    """Open the environment on fake sandboxes."""
    env = NumbersEnv(config)
    engine = RolloutEngine(config, model=model or TokenModel(), backend=FakeBackend())
    async with engine, env.opened(engine):
        await env.setup()
        yield env
