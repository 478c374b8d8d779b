"""``serve`` as a process while everything around it breaks: no group lost, nothing left."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from .free_port import free_port
from .serve_chaos import Durations, check_a_disturbed_run
from .serve_process import serving_process
from .trajectory_server import Trainer, trajectory_server

TERMINAL_TEST = ("terminal-test", "--openai.server_type", "oracle")


@pytest.mark.timeout(180)
async def test_no_group_is_lost_whatever_breaks(tmp_path: Path) -> None:
    """The issue's 20 s without a model and a minute of full queue are in
    tests/scale/test_serve_chaos_scale.py."""
    brief = Durations(model_away_s=3, queue_full_s=2, api_away_s=1)
    await check_a_disturbed_run(tmp_path, brief)


async def test_sigterm_while_it_waits_for_a_trainer_ends_it_at_once(tmp_path: Path) -> None:
    async with trajectory_server(tmp_path) as server:
        words = (*TERMINAL_TEST, "--env.rollout_server_url", server.url)
        async with serving_process(tmp_path, *words) as serve:
            with anyio.fail_after(30):
                while "register-env" not in (tmp_path / "run-api.log").read_text():
                    await anyio.sleep(0.1)
            serve.terminate()
            assert await serve.end(8) == 143, serve.output
    assert "Traceback" not in serve.output
    assert serve.left_files() == []


async def test_an_api_that_stays_away_is_one_message_with_its_address(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    words = (*TERMINAL_TEST, "--env.rollout_server_url", url, "--env.api_wait_s", "1")
    async with serving_process(tmp_path, *words) as serve:
        assert await serve.end(30) == 3, serve.output
    assert f"{url} gave no answer" in serve.output
    assert "Traceback" not in serve.output


async def test_an_api_that_dies_for_good_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    async with trajectory_server(tmp_path) as server:
        trainer = Trainer(server.url, batch_size=4)
        await trainer.register()
        words = (
            *(*TERMINAL_TEST, "--env.rollout_server_url", server.url, "--env.api_wait_s", "1"),
            *("--env.ensure_scores_are_not_same", "false"),
        )
        async with serving_process(tmp_path, *words) as serve:
            with anyio.fail_after(30):
                while await trainer.pull() is None:
                    await anyio.sleep(0.1)
            server.kill()
            assert await serve.end(40) == 3, serve.output
        await trainer.aclose()
    assert "gave no answer" in serve.output
    assert "Traceback" not in serve.output
    assert serve.left_files() == []
