"""One run of a task's ``test.sh`` in one sandbox, whatever the agent left there.

The order: /tests and /logs/verifier are made afresh and belong to root (the latter to the
verifier's user), the tests are uploaded, ``test.sh`` runs as that user with only the declared
environment and under its own deadline, the sandbox is paused, and the reward is read. Where the
backend can, everything goes through the container engine: no process of the agent is between.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.benchmarks.reward_files import RewardFiles, parse_report
from hermes_rl.errors import (
    FileError,
    RewardUnreadable,
    SandboxError,
    SandboxFileNotFound,
    SandboxGone,
    VerifierTimeout,
)
from hermes_rl.sandbox import Capability, ExecResult, Sandbox
from hermes_rl.types import JSONObject

__all__ = ["ENDED", "LOGS", "TESTS", "Harness", "VerifierRun", "root_of", "run_as_root", "trusts"]

TESTS = "/tests"
LOGS = "/logs/verifier"
STDOUT = f"{LOGS}/test-stdout.txt"
ENDED = f"{LOGS}/.ended"
"""Written by us the moment ``test.sh`` has ended: a later reward is not its own."""
MAX_REWARD_BYTES = 64 * 1024
"""A reward file is a number or a small object."""
MAX_REPORT_BYTES = 1 << 20
"""Test reports with tracebacks; a larger one is left where it is, and reading it would keep the
event loop for longer than it may."""
FROZEN_READS = 4
"""Tries to read the reward within the limit of one pause."""
TAIL_BYTES = 4096
"""End of the verifier's output that is kept as evidence."""
PREPARE_TIMEOUT_S = 60.0
"""Making three directories and changing modes; more than a second only where all is very busy."""

_PREPARE = f"""set -e
[ ! -L {TESTS} ] || rm -f {TESTS}
[ -d /logs ] && [ ! -L /logs ] || rm -f /logs
rm -rf {TESTS} {LOGS}
mkdir -p /logs
mkdir {TESTS} {LOGS}
if [ "$(id -u)" = 0 ]; then chown 0:0 /logs {TESTS}; chown "$1" {LOGS}; fi
chmod 755 /logs {TESTS} {LOGS}
"""
_RUN = f"{TESTS}/test.sh > {STDOUT} 2>&1; code=$?; : > {ENDED}; exit $code"
_READABLE = f"chmod -R a+rX {TESTS}; chmod 755 {TESTS}/test.sh"


@dataclass(slots=True, frozen=True, kw_only=True)
class Harness:
    """A task's tests and how they are run.

    Attributes:
        tests: Local folder with ``test.sh``, uploaded to ``/tests``.
        env: The declared environment of ``test.sh``; nothing else is passed.
        user: User that runs it; None = the sandbox's.
        workdir: Its working directory; None = the image's.
    """

    tests: Path
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class VerifierRun:
    """How one run ended.

    Attributes:
        files: What it left.
        exit_code: Of ``test.sh``; means nothing.
        duration_s: How long it took.
        output_tail: End of its output.
        obstacle: Why it could not even be started, "" if it was.
    """

    files: RewardFiles = field(default_factory=RewardFiles)
    exit_code: int | None = None
    duration_s: float = 0.0
    output_tail: str = ""
    obstacle: str = ""

    @classmethod
    async def of(
        cls, harness: Harness, sandbox: Sandbox, *, timeout_s: float, script: str | None = None
    ) -> VerifierRun:
        """Run the tests in ``sandbox``.

        Args:
            harness: The tests.
            sandbox: Where to.
            timeout_s: Deadline of ``test.sh``.
            script: A ``test.sh`` to run instead; nothing else is uploaded then.

        Raises:
            VerifierTimeout: ``test.sh`` did not end in time.
            RewardUnreadable: A reward file is there but cannot be read.
            SandboxError: The sandbox failed.
        """
        obstacle = await _prepare(harness, sandbox, script)
        if obstacle:
            return cls(obstacle=obstacle)
        done = await sandbox.exec(
            _RUN,
            timeout_s=timeout_s,
            session=None,
            cwd=harness.workdir,
            env=harness.env,
            user=harness.user,
            trusted=trusts(sandbox),
        )
        if done.timed_out:
            raise VerifierTimeout(
                f"The verifier did not end within its {timeout_s:g} s. Its output ends:\n"
                f"{await _output_tail(sandbox)}"
            )
        return cls(
            files=await _read_frozen(sandbox),
            exit_code=done.exit_code,
            duration_s=round(done.duration_s, 3),
            output_tail=await _output_tail(sandbox),
        )

    def missing(self) -> RewardUnreadable | None:
        """Return why there is no reward at all, None if there is one, readable or not."""
        if self.obstacle:
            return RewardUnreadable(self.obstacle)
        if self.files.has_reward:
            return None
        return RewardUnreadable(
            f"test.sh ended with exit code {self.exit_code} and left neither reward.json nor "
            f"reward.txt in {LOGS}. Its output ends:\n{self.output_tail}"
        )


def trusts(sandbox: Sandbox) -> bool:
    """Say whether commands and reads can go around everything inside the sandbox."""
    return Capability.ENGINE_ACCESS in sandbox.capabilities


def root_of(sandbox: Sandbox) -> str | None:
    """Return root where users can be chosen, else None: the sandbox's user."""
    return "root" if Capability.USERS in sandbox.capabilities else None


async def run_as_root(
    sandbox: Sandbox, script: str, *arguments: str, trusted: bool = False
) -> ExecResult:
    """Run a shell script as root where users can be chosen, else as the sandbox's user.

    Args:
        sandbox: Where to run it.
        script: For sh.
        arguments: Its positional parameters.
        trusted: Around everything inside the sandbox where the backend can; that takes longer.
    """
    return await sandbox.exec(
        ["sh", "-c", script, "sh", *arguments],
        timeout_s=PREPARE_TIMEOUT_S,
        session=None,
        cwd="/",
        user=root_of(sandbox),
        trusted=trusted and trusts(sandbox),
    )


async def _prepare(harness: Harness, sandbox: Sandbox, script: str | None) -> str:
    """Make the directories afresh and upload the tests; return what is in the way, or ""."""
    who = await sandbox.exec(
        ["id", "-u"], timeout_s=PREPARE_TIMEOUT_S, session=None, cwd="/", user=harness.user
    )
    owner = who.text.strip()
    if who.exit_code != 0 or not owner.isdigit():
        said = who.stderr_text.strip() or who.text.strip()
        return f"The tests cannot run as user {harness.user or '(the image default)'}: {said}"
    made = await run_as_root(sandbox, _PREPARE, owner, trusted=True)
    if made.exit_code != 0:
        return _obstacle(made)
    try:
        if script is None:
            await sandbox.upload(harness.tests, TESTS, user=root_of(sandbox))
        else:
            content = script.encode()
            await sandbox.write(f"{TESTS}/test.sh", content, user=root_of(sandbox))
    except FileError as error:
        return f"The tests cannot be uploaded: {error}"
    readable = await run_as_root(sandbox, _READABLE)
    return _obstacle(readable) if readable.exit_code != 0 else ""


def _obstacle(result: ExecResult) -> str:
    said = result.stderr_text.strip() or result.text.strip()
    return f"The tests cannot be set up (exit code {result.exit_code}): {said}"


async def _output_tail(sandbox: Sandbox) -> str:
    shown = await sandbox.exec(
        ["tail", "-c", str(TAIL_BYTES), STDOUT],
        timeout_s=PREPARE_TIMEOUT_S,
        session=None,
        cwd="/",
        max_output_bytes=TAIL_BYTES,
    )
    return shown.text


def _frozen(sandbox: Sandbox) -> AbstractAsyncContextManager[None]:
    if Capability.PAUSE in sandbox.capabilities and trusts(sandbox):
        return sandbox.pause()
    return nullcontext()


async def _read_frozen(sandbox: Sandbox) -> RewardFiles:
    """Read the files while nothing in the sandbox runs.

    A pause has a limit that a busy engine can miss. Then it is tried again: what changed between
    the tries shows when a pass is looked at twice.
    """
    for tries_left in reversed(range(FROZEN_READS)):
        try:
            async with _frozen(sandbox):
                return await _read_files(sandbox)
        except (SandboxGone, FileError):
            raise
        except SandboxError:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


async def _read_files(sandbox: Sandbox) -> RewardFiles:
    report: JSONObject | None
    try:
        data = await _read(sandbox, "ctrf.json", MAX_REPORT_BYTES)
        report = None if data is None else parse_report(data)
    except FileError as error:
        report = {"ctrf_error": f"ctrf.json cannot be read: {error}"}
    try:
        return RewardFiles(
            reward_json=await _read(sandbox, "reward.json", MAX_REWARD_BYTES),
            reward_txt=await _read(sandbox, "reward.txt", MAX_REWARD_BYTES),
            report=report,
        )
    except FileError as error:
        raise RewardUnreadable(f"The reward cannot be read: {error}") from error


async def _read(sandbox: Sandbox, name: str, max_bytes: int) -> bytes | None:
    try:
        path = f"{LOGS}/{name}"
        return await sandbox.read(path, max_bytes=max_bytes, trusted=trusts(sandbox))
    except SandboxFileNotFound:
        return None
