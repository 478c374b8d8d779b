"""What a rollout gives its reward beside the sandbox: limit, place for files, spare sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.context import ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ImageNotFound, Unsupported
from hermes_rl.model.scripted import nop_model
from hermes_rl.plan import LEASE_MARGIN_S, plan_rollout
from hermes_rl.results import RolloutResult
from hermes_rl.rollout_site import SPARES
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines
from hermes_rl.testing.fake_sandbox import FakeBackend, FakeSandbox
from hermes_rl.testing.fake_tasks import FakeTask


async def outcome(
    task: FakeTask,
    backend: FakeBackend | None = None,
    artifacts: Callable[[str, int], Path] | None = None,
    **config: Any,
) -> RolloutResult:
    engine = RolloutEngine(
        EnvConfig(rollout_retries=0, **config),
        model=nop_model(),
        backend=backend or FakeBackend(),
        artifacts=artifacts,
    )
    async with engine:
        return await engine.rollout(task, attempt=3)


@pytest.mark.parametrize(("cap_s", "limit_s"), [(None, 900.0), (60.0, 60.0), (2000.0, 900.0)])
async def test_test_timeout_caps_the_rewards_work_but_not_its_margin(
    cap_s: float | None, limit_s: float
) -> None:
    seen = []

    async def reward(result: Any, ctx: ToolContext) -> float:
        seen.append(ctx.limit_s)
        return 1.0

    task = FakeTask(reward=reward, deadlines=Deadlines(reward_s=900, reward_margin_s=40))
    plan = plan_rollout(EnvConfig(test_timeout=cap_s), task)
    assert (plan.reward_limit_s, plan.reward_s) == (limit_s, limit_s + 40)
    assert plan.spec.lease_s >= plan.setup_s + plan.agent_s + limit_s + 40 + LEASE_MARGIN_S
    await outcome(task, test_timeout=cap_s)
    assert seen == [limit_s]


async def _exits(result: Any, ctx: ToolContext) -> float:
    raise SystemExit(9)


def _exits_in_a_thread(result: Any, ctx: Any) -> float:
    raise SystemExit(9)


async def _exits_in_a_task_group(result: Any, ctx: ToolContext) -> float:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        raise SystemExit(9)


@pytest.mark.parametrize("reward", [_exits, _exits_in_a_thread, _exits_in_a_task_group])
async def test_reward_code_that_exits_ends_its_rollout_only(reward: Any) -> None:
    result = await outcome(FakeTask(reward=reward))
    assert result.status == "errored"
    assert "called sys.exit(9)" in str(result.failure)


async def test_artifacts_go_where_the_engine_was_told(tmp_path: Path) -> None:
    seen = []

    async def reward(result: Any, ctx: ToolContext) -> float:
        seen.append(ctx.artifacts)
        return 1.0

    task = FakeTask(id="t", reward=reward)
    await outcome(task, artifacts=lambda task_id, attempt: tmp_path / task_id / str(attempt))
    await outcome(task)
    assert seen == [tmp_path / "t/3", None]


async def test_a_spare_sandbox_is_of_the_same_kind_and_removed_at_once() -> None:
    backend = FakeBackend()

    async def reward(result: Any, ctx: ToolContext) -> float:
        async with ctx.spare_sandbox() as spare:
            assert spare is not ctx.sandbox
            assert backend.created[1].closed == 0
        assert backend.created[1].closed == 1
        return 1.0

    task = FakeTask(reward=reward, sandbox=SandboxSpec(env={"A": "b"}))
    assert (await outcome(task, backend)).score == 1.0
    first, second = backend.specs
    assert (second.env, second.labels) == (first.env, first.labels)
    assert second.lease_s < first.lease_s


async def test_a_spare_sandbox_goes_when_the_reward_is_cut_short() -> None:
    backend = FakeBackend()

    async def reward(result: Any, ctx: ToolContext) -> float:
        async with ctx.spare_sandbox():
            await anyio.sleep_forever()
        return 1.0

    task = FakeTask(reward=reward, deadlines=Deadlines(reward_s=0.05))
    assert (await outcome(task, backend)).status == "errored"
    assert [sandbox.closed for sandbox in backend.created] == [1, 1]


async def test_a_spare_sandbox_that_cannot_be_made_is_the_backends_error() -> None:
    def make(spec: SandboxSpec) -> FakeSandbox:
        if len(backend.specs) > 1:
            raise ImageNotFound("gone")
        return FakeSandbox()

    backend = FakeBackend(make)

    async def reward(result: Any, ctx: ToolContext) -> float:
        async with ctx.spare_sandbox():
            return 1.0

    result = await outcome(FakeTask(reward=reward), backend)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.phase) == ("ImageNotFound", "reward")


async def test_few_spare_sandboxes_live_at_once() -> None:
    most = 0
    backend = FakeBackend()

    async def reward(result: Any, ctx: ToolContext) -> float:
        nonlocal most
        async with ctx.spare_sandbox():
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
                most = max(most, len(backend.alive))
        return 1.0

    tasks = [FakeTask(id=f"t{n}", reward=reward) for n in range(10)]
    config = EnvConfig(max_running_sandboxes=10, max_eval_workers=10)
    engine = RolloutEngine(config, model=nop_model(), backend=backend)
    async with engine, engine.run(tasks) as stream:
        assert [result.score async for result in stream] == [1.0] * 10
    assert 10 < most <= 10 + SPARES
    assert backend.alive == []


def test_a_context_of_ones_own_has_no_spare_sandboxes() -> None:
    context = ToolContext(FakeSandbox(), None)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="opens no sandboxes"):
        context.spare_sandbox()


async def test_a_task_is_skipped_by_name_on_a_backend_it_is_known_not_to_run_on() -> None:
    backend = FakeBackend()
    task = FakeTask(sandbox=SandboxSpec(not_on={"fake": "it needs KVM.", "other": "no."}))
    result = await outcome(task, backend)
    assert result.status == "skipped"
    assert result.failure is not None
    assert result.failure.message == "It cannot run on the backend 'fake': it needs KVM."
    assert backend.created == []
