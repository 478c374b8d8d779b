import io
import re
from pathlib import Path

import orjson
import pytest

from hermes_rl.benchmarks.task_file import EnvironmentSection
from hermes_rl.cli.display import duration_text, make_display, progress_text
from hermes_rl.cli.exit_codes import EXIT_CODE_HELP, ExitCode
from hermes_rl.cli.plain import printable
from hermes_rl.cli.report import rollout_table, summary_text
from hermes_rl.evaluation import Progress
from hermes_rl.runlog.schema import FailureRecord, RolloutRecord, RunHeader
from hermes_rl.runlog.scores import summarise
from hermes_rl.runlog.text import message_text

HEADER = RunHeader(
    run_id="r",
    created_at="now",
    engine_version="9.9",
    task_set="demo",
    models=["m"],
    attempts=1,
    task_ids=["a", "b", "c"],
    tools=[],
    score_config={"env.terminal_backend": "docker", "env.agent_temperature": 0.0},
)


def record(task: str, **fields: object) -> RolloutRecord:
    return RolloutRecord.model_validate(
        {
            "task_id": task,
            "attempt": 0,
            "status": "finished",
            "reward": 1.0,
            "passed": True,
            "stop_reason": "finished",
            "finished_at": "now",
            **fields,
        }
    )


def test_a_terminal_call_reads_as_a_shell_session() -> None:
    arguments = orjson.dumps({"command": "ls -la", "timeout": 5}).decode()
    call = {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
    assert message_text({"role": "assistant", "content": None, "tool_calls": [call]}) == (
        '=== assistant\n$ ls -la   {"timeout":5}'
    )
    result = {"output": "a\nb\n", "exit_code": 2, "error": None}
    assert message_text({"role": "tool", "content": orjson.dumps(result).decode()}) == (
        "=== tool\na\nb\n[exit code 2]"
    )


def test_other_calls_reasoning_and_parts_are_shown() -> None:
    call = {"function": {"name": "patch", "arguments": "not json"}}
    text = message_text(
        {"role": "assistant", "reasoning_content": "hm", "content": "x", "tool_calls": [call]}
    )
    assert text == "=== assistant\n(thinking)\nhm\n(end of thinking)\nx\npatch not json"
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]
    assert message_text({"role": "user", "content": parts}) == "=== user\nsee\n[image_url]"
    assert message_text({"role": "tool", "content": "plain"}) == "=== tool\nplain"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07\x1b[2J", "\\x1b]0;owned\\x07\\x1b[2J"),
        ("a\r\nb\tc\n", "a\nb\tc\n"),
        ("over\rwrite", "over\\x0dwrite"),
        ("\u202etxt.exe", "\\x202etxt.exe"),
        ("\x9b2J", "\\x9b2J"),
        ("grün ✓ \ud800", "grün ✓ ?"),
    ],
)
def test_a_model_cannot_steer_the_terminal_of_its_reader(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_report_shows_errors_and_flags_beside_the_score() -> None:
    failure = FailureRecord(kind="Capacity", message="no room\nat all", phase="setup")
    records = [
        record("a", metadata={"category": "git"}, flags=["tamper_suspect: /bin/sh"]),
        record("b", reward=0.0, passed=False, metadata={"category": "git"}),
        record("c", status="errored", reward=None, passed=False, failure=failure),
    ]
    text = summary_text(HEADER, summarise(records, planned=4))
    assert "demo: m on docker, 3 tasks x 1, temperature 0.0, hermes_rl 9.9" in text
    assert "INCOMPLETE: 3 of 4 rollouts" in text
    assert "pass rate       0.333" in text
    assert "without errors  0.500" in text
    assert "flagged passes  1" in text
    assert "flagged as 0    0.000" in text
    assert "git  0.500" in text
    assert "1  Capacity\n         no room at all" in text
    table = rollout_table(records).splitlines()
    assert "FLAGGED tamper_suspect: /bin/sh" in table[1]
    assert table[3].endswith("ERRORED Capacity: no room")


def test_tables_show_mean_rewards_where_a_reward_can_be_a_part() -> None:
    whole = [record("a", metadata={"category": "git"}), record("b", reward=0.0, passed=False)]
    assert "mean reward 1" not in summary_text(HEADER, summarise(whole, planned=2))
    part = record("c", reward=0.25, passed=False, metadata={"category": "shell"})
    text = summary_text(HEADER, summarise([*whole, part], planned=3))
    ends = [line.rpartition("  mean")[2] for line in text.splitlines() if "of 1" in line]
    assert ends == [" reward 1.000", " reward 0.250"]


def test_a_report_of_nothing_says_so() -> None:
    assert "nothing was run" in summary_text(HEADER, summarise([], planned=3))


def test_progress_is_one_line() -> None:
    moment = Progress(
        planned=40,
        done=12,
        passed=5,
        errored=1,
        running=16,
        mean_reward=0.4167,
        elapsed_s=72.0,
        eta_s=3700.0,
        tokens_per_s=38.4,
        waiting_share=0.031,
    )
    assert progress_text(moment) == (
        "12/40 done  5 passed  1 errored  16 running  mean 0.417  38 tok/s  3% waiting  1:12  "
        "1:01:40 left"
    )
    assert duration_text(59.9) == "0:59"


def test_auto_is_plain_where_there_is_no_terminal_and_shows_the_last_moment_once() -> None:
    stream = io.StringIO()
    display = make_display("auto", stream)
    display.update(Progress(planned=2, done=1))
    display.update(Progress(planned=2, done=2))
    display.close()
    display.close()
    assert stream.getvalue() == "2/2 done  0 passed  0 running  0:00\n"


def test_display_none_says_only_what_must_be_said() -> None:
    stream = io.StringIO()
    display = make_display("none", stream)
    display.update(Progress(planned=2, done=1))
    display.say("important")
    display.close()
    assert stream.getvalue() == "important\n"


def test_the_docs_name_every_exit_code_and_every_honoured_field() -> None:
    text = (Path(__file__).parents[3] / "docs/evaluate.md").read_text()
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", text, re.MULTILINE), code
        assert re.search(rf"^  {code.value} ", EXIT_CODE_HELP, re.MULTILINE), code
    for field in ("docker_image", "build_timeout_sec", "cpus", "gpus", "workdir", "healthcheck"):
        assert field in EnvironmentSection.model_fields
        assert field in text
