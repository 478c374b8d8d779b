"""Deadlines, leases, tools and seeds, resolved before anything is spent."""

from __future__ import annotations

import pytest

from hermes_rl.config import AgentFields, EnvConfig
from hermes_rl.errors import ConfigError, TaskError, UnknownName
from hermes_rl.plan import (
    LEASE_MARGIN_S,
    WAITING_ALLOWANCE_S,
    ToolChoice,
    missing_capabilities,
    plan_rollout,
    plan_run,
    rollout_seed,
)
from hermes_rl.sandbox import Capability, SandboxSpec
from hermes_rl.tasks import Deadlines
from hermes_rl.testing.fake_tasks import FakeTask


@pytest.mark.parametrize(
    ("own_s", "cap_s", "expected_s"),
    [(None, None, 1800), (None, 7200, 7200), (300, None, 300), (300, 100, 100), (100, 300, 100)],
)
def test_a_cap_lowers_a_deadline_and_replaces_a_missing_one(
    own_s: float | None, cap_s: float | None, expected_s: float
) -> None:
    config = AgentFields(task_timeout=cap_s)
    plan = plan_rollout(config, FakeTask(deadlines=Deadlines(agent_s=own_s)))
    assert plan.agent_s == expected_s


SIXTY_SECONDS = FakeTask(deadlines=Deadlines(setup_s=10, agent_s=20, reward_s=30))


def test_the_lease_covers_all_phases_and_the_waiting_that_is_forgiven() -> None:
    plan = plan_rollout(AgentFields(), SIXTY_SECONDS)
    assert plan.waiting_s == WAITING_ALLOWANCE_S
    assert plan.spec.lease_s == 60 + LEASE_MARGIN_S + WAITING_ALLOWANCE_S


@pytest.mark.parametrize(("cap_s", "waiting_s"), [(3600, 1800), (130, 10), (120, 0)])
async def test_a_capped_lifetime_takes_from_the_waiting_first(cap_s: int, waiting_s: float) -> None:
    config = AgentFields(terminal_lifetime=cap_s)
    (plan,) = await plan_run(config, [SIXTY_SECONDS])
    assert plan.waiting_s == waiting_s
    assert plan.spec.lease_s <= cap_s


def test_tasks_without_deadlines_live_at_least_for_the_terminal_lifetime() -> None:
    assert plan_rollout(AgentFields(terminal_lifetime=9000), FakeTask()).spec.lease_s == 9000
    long = plan_rollout(AgentFields(task_timeout=9000), FakeTask())
    assert long.spec.lease_s == 600 + 9000 + 600 + LEASE_MARGIN_S + WAITING_ALLOWANCE_S


async def test_a_lifetime_below_a_tasks_need_is_an_error_that_lists_the_tasks() -> None:
    tasks = [
        FakeTask(id="short", deadlines=Deadlines(setup_s=1, agent_s=1, reward_s=1)),
        FakeTask(id="long", deadlines=Deadlines(setup_s=1, agent_s=1, reward_s=5000)),
    ]
    assert len(await plan_run(AgentFields(), tasks)) == 2
    with pytest.raises(ConfigError, match="but long need up to 5062 s") as raised:
        await plan_run(AgentFields(terminal_lifetime=3600), tasks)
    assert "short" not in str(raised.value)


async def test_many_short_lived_tasks_are_listed_in_part() -> None:
    with pytest.raises(ConfigError, match=r"task-9 and 90 more need"):
        await plan_run(
            AgentFields(terminal_lifetime=1), [FakeTask(id=f"task-{i}") for i in range(100)]
        )


async def test_duplicate_ids_are_refused_by_name() -> None:
    tasks = [FakeTask(id="a"), FakeTask(id="b"), FakeTask(id="a")]
    with pytest.raises(TaskError, match="but a occur more than once"):
        await plan_run(AgentFields(), tasks)


def test_the_system_prompt_comes_first() -> None:
    plan = plan_rollout(AgentFields(system_prompt="Be brief."), FakeTask(prompt="Do it."))
    assert [m["role"] for m in plan.messages] == ["system", "user"]


def test_configured_resources_fill_what_the_task_leaves_open() -> None:
    config = AgentFields(terminal_image="debian", terminal_cpus=2, terminal_network="none")
    task = FakeTask(id="t", sandbox=SandboxSpec(cpus=1, labels={"group": "7"}))
    spec = plan_rollout(config, task).spec
    assert (spec.image, spec.cpus, spec.network) == ("debian", 1, "none")
    assert spec.labels == {"task": "t", "group": "7"}


def test_what_the_backend_lacks_is_named() -> None:
    plan = plan_rollout(AgentFields(), FakeTask(sandbox=SandboxSpec(image="x", memory_mb=9)))
    assert missing_capabilities(plan, {Capability.IMAGES}) == ["memory_limit"]


def test_tools_are_those_of_the_toolsets() -> None:
    choice = ToolChoice(AgentFields(enabled_toolsets=["terminal", "todo"]))
    assert choice.names("any") == ("process", "terminal", "todo")
    with pytest.raises(UnknownName, match="Did you mean 'terminal'"):
        ToolChoice(AgentFields(enabled_toolsets=["termnal"]))


def test_a_distribution_is_drawn_once_per_task_and_the_same_in_every_run() -> None:
    config = EnvConfig(distribution="terminal_only", seed=3)
    choice, again = ToolChoice(config), ToolChoice(config)
    for task_id in map(str, range(20)):
        assert choice.names(task_id) == again.names(task_id)
    assert "terminal" in choice.names("a")


def test_a_distribution_that_may_draw_what_is_not_installed_is_refused_up_front() -> None:
    with pytest.raises(ConfigError, match="not available here"):
        ToolChoice(AgentFields(distribution="development"))


def test_seeds_differ_by_task_and_attempt_and_are_stable() -> None:
    seeds = {rollout_seed(0, task, attempt) for task in "abc" for attempt in range(4)}
    assert len(seeds) == 12
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(0, "a", 0) == 1252016353
