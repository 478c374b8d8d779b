"""Our thirteen tiny tasks: both of their forms, a scripted agent, and what each is worth."""

from __future__ import annotations

import base64
import io
import tarfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from hermes_rl.benchmarks.task_directory import load_tasks
from hermes_rl.benchmarks.terminal_task import TerminalTask
from hermes_rl.benchmarks.terminalbench_2.task_set import TerminalBench2
from hermes_rl.model.scripted import ScriptedModel, Turn, call, replay, say
from hermes_rl.runlog.reader import RecordedRun
from hermes_rl.types import JSONObject, Message

TINY = Path(__file__).parents[1] / "data/tb_tasks"
FORMS = ("directory", "rows")

PASSED, FAILED, FLAGGED = (
    ("finished", 1.0, False),
    ("finished", 0.0, False),
    ("finished", 1.0, True),
)
SLOW, NO_BOOTSTRAP = "VerifierTimeout", "VerifierBootstrapFailed"
Outcome = tuple[str, float, bool] | str
"""Status, reward and whether there are flags; or the error."""

EXPECTED: Mapping[str, tuple[Outcome, Outcome, Outcome]] = {
    "agent-timeout": (PASSED, FAILED, FAILED),
    "binary-files": (PASSED, FAILED, FAILED),
    "built-image": (PASSED, FAILED, PASSED),
    "left-server": (PASSED, FAILED, PASSED),
    "many-test-files": (PASSED, FAILED, FAILED),
    "no-bootstrap": (NO_BOOTSTRAP, NO_BOOTSTRAP, NO_BOOTSTRAP),
    "no-network": (PASSED, FAILED, PASSED),
    "other-user": (PASSED, FAILED, PASSED),
    "own-workdir": (PASSED, FAILED, PASSED),
    "prebuilt-image": (PASSED, FAILED, FAILED),
    "slow-tests": (SLOW, SLOW, SLOW),
    "tampering-agent": (FLAGGED, FAILED, PASSED),
    "two-rewards": (PASSED, FAILED, ("finished", 0.5, False)),
}
"""By task: with the oracle, with an agent that does nothing, with the scripted one."""


def recorded_outcomes(run: RecordedRun, *, missing: Sequence[str]) -> dict[str, Outcome]:
    """Return what each task that ran came to; each scored one lacked ``missing`` protections."""
    outcomes: dict[str, Outcome] = {}
    for (name, _), record in run.records.items():
        if record.status == "skipped":
            continue
        if record.failure is not None:
            known = record.failure.kind in (SLOW, NO_BOOTSTRAP)
            outcomes[name] = record.failure.kind if known else record.failure.message
        else:
            assert record.reward is not None
            outcomes[name] = (record.status, record.reward, bool(record.flags))
            assert list(record.missing_protections) == list(missing)
    return outcomes


def reasons_skipped(run: RecordedRun) -> dict[str, str]:
    """Return why tasks were skipped, by task."""
    return {
        name: record.failure.message
        for (name, _), record in run.records.items()
        if record.status == "skipped" and record.failure is not None
    }


def expected_unseen(agent: str, *, skipped: Collection[str] = ()) -> dict[str, Outcome]:
    """Docker's outcomes, but for the flag: what an agent changed is not seen."""
    column = ("oracle", "nop").index(agent)
    outcomes = {name: each[column] for name, each in EXPECTED.items() if name not in skipped}
    return {name: PASSED if each == FLAGGED else each for name, each in outcomes.items()}


_SCRIPTS: Mapping[str, Sequence[Turn]] = {
    # Waits without having done anything.
    "agent-timeout": [call("terminal", {"command": "sleep 600"})],
    # Goes through text, which loses the bytes that are none.
    "binary-files": [call("terminal", {"command": "rev data.bin > reversed.bin"})],
    "built-image": [
        call("read_file", {"path": "seed"}),
        call("write_file", {"path": "shouted", "content": "A QUIET WORD\n"}),
    ],
    "left-server": [
        call(
            "terminal",
            {"command": "cd public && exec python3 -m http.server 8077", "background": True},
        ),
        call("terminal", {"command": "sleep 1; curl -s http://127.0.0.1:8077/page"}),
    ],
    # One value is wrong.
    "many-test-files": [
        call(
            "terminal",
            {
                "command": "python3 -c 'import json; "
                "print(json.dumps({str(n): n * n if n < 20 else 0 for n in range(1, 21)}))'"
                " > /app/squares.json"
            },
        )
    ],
    "no-network": [call("terminal", {"command": "ls /sys/class/net > interfaces"})],
    "other-user": [
        call("terminal", {"command": "cat /root/secret; whoami > me"}),
        call("read_file", {"path": "me"}),
    ],
    "own-workdir": [
        call("write_file", {"path": "names", "content": "anton\nbela\nmira\nzoe\n"}),
    ],
    # Miscounts.
    "prebuilt-image": [call("write_file", {"path": "lines", "content": "0\n"})],
    "tampering-agent": [call("write_file", {"path": "/app/root", "content": "42\n"})],
    "two-rewards": [call("write_file", {"path": "greek", "content": "alpha\nbeta\nomega\n"})],
}


def scripted_agent() -> ScriptedModel:
    """Return a model that solves some tasks, some in part, and gets others wrong."""
    by_prompt = {task.prompt: replay(_SCRIPTS.get(task.id, [])) for task in load_tasks(TINY)}

    def next_turn(messages: Sequence[Message]) -> Turn:
        prompt = next(m["content"] for m in messages if m["role"] == "user")
        return by_prompt[prompt](messages) if prompt in by_prompt else say("What?")

    return ScriptedModel(next_turn)


def row_of(folder: Path) -> JSONObject:
    """Return a task's folder as a row of a data set, as those on the hub are."""
    file = tomllib.loads((folder / "task.toml").read_text())
    metadata = file["metadata"]
    return {
        "task_name": folder.name,
        "instruction": (folder / "instruction.md").read_text(),
        "docker_image": file["environment"].get("docker_image", ""),
        "category": metadata["category"],
        "difficulty": metadata["difficulty"],
        "tags": orjson.dumps(metadata["tags"]).decode(),
        "agent_timeout_sec": file["agent"]["timeout_sec"],
        "test_timeout_sec": file["verifier"]["timeout_sec"],
        "environment_tar": archive_text(folder / "environment"),
        "tests_tar": archive_text(folder / "tests"),
        "test_sh": (folder / "tests/test.sh").read_text(),
    }


def archive_text(folder: Path) -> str:
    """Return a folder's contents as base64 of a gzip-compressed tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        if folder.is_dir():
            tar.add(folder, arcname=".")
    return base64.b64encode(buffer.getvalue()).decode()


def write_rows(path: Path, folders: Sequence[Path]) -> Path:
    """Write folders as a data set file."""
    path.write_bytes(b"".join(orjson.dumps(row_of(folder)) + b"\n" for folder in folders))
    return path


async def load_form(form: str, where: Path) -> list[TerminalTask]:
    """Load the tiny tasks in one of their forms; rows get the folders' solutions."""
    if form == "directory":
        return list(await TerminalBench2(str(TINY)).load())
    rows = write_rows(where / "rows.jsonl", sorted(TINY.iterdir()))
    solutions = {task.id: task.solution for task in load_tasks(TINY)}
    tasks = await TerminalBench2(str(rows)).load()
    assert all(task.solution is None for task in tasks)
    return [replace(task, solution=solutions[task.id]) for task in tasks]
