"""The golden table: what test.sh does in a real container, and the reward or error it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_rl.backends.docker import create_backend
from hermes_rl.benchmarks.verifier_run import Harness, VerifierRun
from hermes_rl.errors import RewardError
from hermes_rl.sandbox import Sandbox

from .docker_boxes import box, run_settings

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

TIMEOUT_S = 4.0
NONE, LATE = "RewardUnreadable", "VerifierTimeout"
GOLDEN: list[tuple[str, float | str]] = [
    # The files decide, the exit code does not.
    ("echo 1 > reward.txt", 1.0),
    ("echo 1 > reward.txt; exit 1", 1.0),
    ("echo 0.25 > reward.txt; exit 137", 0.25),
    ("echo 1 > reward.txt; kill -9 $$", 1.0),
    ("printf ' -1 \\n\\n' > reward.txt", -1.0),
    ("echo '{\"reward\": 0.5}' > reward.json", 0.5),
    ("echo '{\"accuracy\": 1}' > reward.json", 1.0),
    ('echo \'{"speed": 0, "reward": 1}\' > reward.json', 1.0),
    ("echo 1 > reward.txt; echo '{\"reward\": 0}' > reward.json", 0.0),
    # No reward is an error and no zero.
    ("exit 1", NONE),
    ("set -e; false; echo 1 > reward.txt", NONE),
    ("echo 1 > reward.txt; rm reward.txt", NONE),
    # Nor is one that cannot be read.
    (": > reward.txt", NONE),
    ("echo nan > reward.txt", NONE),
    ("head -c 70000 /dev/zero | tr '\\0' 1 > reward.txt", NONE),
    ("echo 1 > reward.txt; : > reward.json", NONE),
    ('echo \'{"reward": "1"}\' > reward.json', NONE),
    ('echo \'{"a": 1, "b": 1}\' > reward.json', NONE),
    ("mkdir reward.txt", NONE),
    ("echo 1 > /tmp/one; ln -s /tmp/one reward.txt", NONE),
    ("mkfifo reward.txt", NONE),
    # Time.
    ("echo 1 > reward.txt; sleep 60", LATE),
    ("trap '' TERM; echo 1 > reward.txt; while :; do sleep 60; done", LATE),
    ("sleep 60 & echo 1 > reward.txt", 1.0),
    ("setsid sleep 60 & echo 0.5 > reward.txt", 0.5),
    # Output is no concern.
    ("head -c 3000000 /dev/urandom; echo 1 > reward.txt", 1.0),
    ("exec 1>&- 2>&-; echo 0.5 > reward.txt", 0.5),
    # What stands in its place beforehand does not count.
    ("test -e stale && echo 1 > reward.txt", NONE),
]


async def outcome(harness: Harness, sandbox: Sandbox) -> float | str:
    try:
        run = await VerifierRun.of(harness, sandbox, timeout_s=TIMEOUT_S)
        missing = run.missing()
        return type(missing).__name__ if missing else run.files.value()
    except RewardError as error:
        return type(error).__name__


async def test_the_golden_table(tmp_path: Path) -> None:
    wrong = []
    async with create_backend(run_settings(tmp_path / "cache")) as backend:
        sandbox = await backend.create(box())
        plant = "mkdir -p /logs/verifier /tests; echo 1 | tee /logs/verifier/reward.txt > /tests/x"
        await sandbox.exec(f"{plant}; touch /logs/verifier/stale", timeout_s=10)
        for number, (script, expected) in enumerate(GOLDEN):
            tests = tmp_path / str(number)
            tests.mkdir()
            path = tests / "test.sh"
            path.write_text(f"#!/bin/bash\ncd /logs/verifier\n{script}\n")
            path.chmod(0o644 if number % 2 else 0o755)
            seen = await outcome(Harness(tests=tests), sandbox)
            if seen != expected:
                wrong.append((script, expected, seen))
    assert wrong == []
