"""Running a task's ``test.sh`` and reading what it says.

Rules, as Harbor 0.26 has them (pinned by tests): stale reward files are removed first; the exit
code of ``test.sh`` means nothing; ``reward.json`` (a flat object of finite numbers) wins over
``reward.txt`` (one finite number); neither, or an unreadable one, is an error and no zero. Of
several numbers in ``reward.json`` the one named ``reward`` counts, else they must be one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from hermes_rl.errors import (
    FileError,
    RewardError,
    SandboxFileNotFound,
    SandboxIsADirectory,
)
from hermes_rl.sandbox import Capability, ExecResult, Sandbox
from hermes_rl.types import JSONObject, Reward

__all__ = ["Verifier", "parse_reward_json", "parse_reward_text"]

LOGS = "/logs/verifier"
STDOUT = f"{LOGS}/test-stdout.txt"
MAX_REWARD_BYTES = 64 * 1024
"""A reward file is a number or a small object."""
MAX_CTRF_BYTES = 4 << 20
"""Test reports with tracebacks; a larger one is left where it is."""
MAX_TESTS_KEPT = 200
"""Test outcomes kept in the evidence; the totals are always complete."""
TAIL_BYTES = 4096
"""End of the verifier's output that is kept as evidence."""
PREPARE_TIMEOUT_S = 30.0
"""Making three directories and changing modes."""

_PREPARE = """set -e
rm -rf /tests /logs/verifier
mkdir -p /tests /logs/verifier
chown {owner} /logs/verifier
chmod 755 /tests /logs/verifier
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class Verifier:
    """A task's tests.

    Attributes:
        tests: Local folder with ``test.sh``, uploaded to ``/tests``.
        timeout_s: Deadline of ``test.sh``.
        env: Its declared environment; nothing else is passed.
        user: User that runs it; None = the sandbox's.
        workdir: Working directory; None = the image's.
    """

    tests: Path
    timeout_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None

    async def run(self, sandbox: Sandbox) -> Reward:
        """Run the tests in ``sandbox``, beside whatever the agent left running.

        Raises:
            RewardError: No reward could be had: the verifier ran out of time or left none.
            SandboxError: The sandbox failed.
        """
        await self._prepare(sandbox)
        await sandbox.upload(self.tests, "/tests")
        await self._as_root(sandbox, "chmod 755 /tests/test.sh")
        result = await sandbox.exec(
            f"/tests/test.sh > {STDOUT} 2>&1",
            timeout_s=self.timeout_s,
            session=None,
            cwd=self.workdir,
            env=self.env,
            user=self.user,
        )
        evidence: JSONObject = {
            "test_exit_code": result.exit_code,
            "test_duration_s": round(result.duration_s, 3),
            "test_output_tail": await self._output_tail(sandbox),
        }
        if result.timed_out:
            raise RewardError(
                f"The verifier did not end within its {self.timeout_s:g} s. Its output ends:\n"
                f"{evidence['test_output_tail']}"
            )
        value, rewards = await self._reward(sandbox, evidence)
        evidence |= {"rewards": rewards} if len(rewards) > 1 else {}
        evidence |= await _ctrf(sandbox)
        return Reward(value, evidence)

    async def _prepare(self, sandbox: Sandbox) -> None:
        """Make /tests and /logs/verifier afresh, so that nothing planted is left in them."""
        who = await sandbox.exec(
            ["id", "-u"], timeout_s=PREPARE_TIMEOUT_S, session=None, user=self.user
        )
        owner = who.text.strip()
        if who.exit_code != 0 or not owner.isdigit():
            raise RewardError(
                f"The verifier's user {self.user or '(the image default)'} does not exist in the "
                f"sandbox: {who.stderr_text.strip()}"
            )
        await self._as_root(sandbox, _PREPARE.format(owner=owner))

    async def _as_root(self, sandbox: Sandbox, script: str) -> None:
        can_choose = Capability.USERS in sandbox.capabilities
        done = await sandbox.exec(
            ["sh", "-c", script],
            timeout_s=PREPARE_TIMEOUT_S,
            session=None,
            cwd="/",
            user="root" if can_choose else None,
        )
        _must_succeed(done)

    async def _output_tail(self, sandbox: Sandbox) -> str:
        shown = await sandbox.exec(
            ["tail", "-c", str(TAIL_BYTES), STDOUT], timeout_s=PREPARE_TIMEOUT_S, session=None
        )
        return shown.text

    async def _reward(
        self, sandbox: Sandbox, evidence: JSONObject
    ) -> tuple[float, dict[str, float]]:
        as_json = await _read(sandbox, f"{LOGS}/reward.json")
        if as_json is not None:
            return parse_reward_json(as_json)
        as_text = await _read(sandbox, f"{LOGS}/reward.txt")
        if as_text is not None:
            value = parse_reward_text(as_text)
            return value, {"reward": value}
        raise RewardError(
            f"test.sh ended with exit code {evidence['test_exit_code']} and left neither "
            f"reward.json nor reward.txt in {LOGS}. Its output ends:\n"
            f"{evidence['test_output_tail']}"
        )


def _must_succeed(result: ExecResult) -> None:
    if result.exit_code != 0:
        raise RewardError(
            f"The directories of the verifier cannot be made (exit code {result.exit_code}): "
            f"{result.stderr_text.strip() or result.text.strip()}"
        )


async def _read(sandbox: Sandbox, path: str) -> bytes | None:
    """Read a reward file, around the sandbox where the backend can; None if there is none."""
    try:
        return await sandbox.read(
            path,
            max_bytes=MAX_REWARD_BYTES,
            trusted=Capability.ENGINE_ACCESS in sandbox.capabilities,
        )
    except SandboxFileNotFound:
        return None
    except FileError as error:
        raise RewardError(f"{path} cannot be read: {error}") from error


def parse_reward_text(data: bytes) -> float:
    """Return the number in ``reward.txt``.

    Raises:
        RewardError: It is empty or no finite number.
    """
    text = data.decode("utf-8", "replace").strip()
    try:
        value = float(text)
    except ValueError:
        raise RewardError(f"reward.txt holds {text[:100]!r}, which is no number.") from None
    if not math.isfinite(value):
        raise RewardError(f"reward.txt holds {text[:100]!r}, which is not finite.")
    return value


def parse_reward_json(data: bytes) -> tuple[float, dict[str, float]]:
    """Return the reward in ``reward.json`` and all its numbers.

    Raises:
        RewardError: It is no flat object of finite numbers, or none of several is named
            ``reward``.
    """
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RewardError(f"reward.json is not valid JSON: {error}") from error
    if not isinstance(content, dict) or not content or not all(map(_is_number, content.values())):
        shown = data[:200].decode("utf-8", "replace")
        raise RewardError(f"reward.json must be an object of finite numbers, not {shown}")
    rewards = {name: float(value) for name, value in content.items()}
    if "reward" in rewards:
        return rewards["reward"], rewards
    if len(rewards) == 1:
        return next(iter(rewards.values())), rewards
    raise RewardError(f"reward.json names {', '.join(rewards)}, but none of them 'reward'.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


async def _ctrf(sandbox: Sandbox) -> JSONObject:
    """Return the test report (https://ctrf.io) as evidence; partial credit for whoever wants it."""
    try:
        data = await sandbox.read(f"{LOGS}/ctrf.json", max_bytes=MAX_CTRF_BYTES)
        results = orjson.loads(data)["results"]
        tests = [
            {"name": str(test["name"]), "status": str(test["status"])} for test in results["tests"]
        ]
        summary = {
            key: int(results["summary"][key])
            for key in ("tests", "passed", "failed", "pending", "skipped", "other")
            if key in results["summary"]
        }
    except (SandboxFileNotFound, SandboxIsADirectory):
        return {}
    except (FileError, orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
        return {"ctrf_error": f"ctrf.json cannot be read: {error}"}
    return {"ctrf": {"summary": summary, "tests": tests[:MAX_TESTS_KEPT]}}
