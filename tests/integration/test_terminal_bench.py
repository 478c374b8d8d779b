"""The thirteen tiny tasks as a whole benchmark on Docker: every form, every kind of agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_rl.backends.ownership import RUN_LABEL
from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.results import RolloutResult
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.types import StopReason

from .tiny_tasks import EXPECTED, FORMS, NO_BOOTSTRAP, SLOW, Outcome, load_form, scripted_agent

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

AGENTS = ("oracle", "nop", "scripted")


def engine_for(agent: str, **settings: Any) -> RolloutEngine:
    # Rows cannot say that a task has no network.
    config = EnvConfig(terminal_backend="docker", terminal_network="none", **settings)
    if agent == "scripted":
        return RolloutEngine(config, model=scripted_agent())
    return RolloutEngine(config, [ServerConfig(server_type=agent)])  # type: ignore[arg-type]


def outcome_of(result: RolloutResult) -> Outcome:
    if result.status == "errored":
        assert result.failure is not None
        known = result.failure.kind in (SLOW, NO_BOOTSTRAP)
        return result.failure.kind if known else result.failure.message
    assert result.reward is not None, result
    return result.status, result.reward.value, bool(result.reward.flags)


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are unpacked below the test's own directory."""
    runtime = Path.home() / ".cache/hermes_rl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache/hermes_rl").mkdir(parents=True)
    for built in runtime.glob("runtime*"):
        (tmp_path / "cache/hermes_rl" / built.name).symlink_to(built)


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_every_tiny_task_gets_its_score(form: str, agent: str, tmp_path: Path) -> None:
    tasks = await load_form(form, tmp_path)
    engine = engine_for(agent)
    label = f"{RUN_LABEL}={engine.run_id}"
    async with leak_census(container_label=label), engine, engine.run(tasks) as stream:
        with loop_monitor(spikes=1):
            results = {result.task_id: result async for result in stream}
    expected = {name: outcomes[AGENTS.index(agent)] for name, outcomes in EXPECTED.items()}
    assert {name: outcome_of(result) for name, result in results.items()} == expected
    assert {result.missing_protections for result in results.values()} == {()}
    _check_details(agent, results)


def _check_details(agent: str, results: dict[str, RolloutResult]) -> None:
    timed_out = results["agent-timeout"].agent
    assert timed_out is not None
    limit_met = timed_out.stop_reason is StopReason.WALL_CLOCK
    assert limit_met == (agent != "nop")
    report = results["many-test-files"].reward
    assert report is not None
    passed = {"oracle": 3, "nop": 0, "scripted": 2}[agent]
    assert report.evidence["ctrf"]["summary"]["passed"] == passed
    rewards = results["two-rewards"].reward
    assert rewards is not None
    assert set(rewards.evidence["rewards"]) == {"reward", "lines"}
    assert rewards.evidence["test_exit_code"] == 3
    slow, unable = results["slow-tests"].failure, results["no-bootstrap"].failure
    assert slow is not None
    assert "waiting for something that never comes" in slow.message
    assert unable is not None
    assert unable.message.startswith("verifier_bootstrap: ")
    assert "uvx: command not found" in unable.message
    if agent == "oracle":
        flagged = results["tampering-agent"].reward
        assert flagged is not None
        assert flagged.flags[0].startswith("tamper_suspect: /usr/bin/curl")
