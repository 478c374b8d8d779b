"""The order of a verification and what its outcomes mean, on a fake sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from hermes_rl.benchmarks import pass_checks, verification
from hermes_rl.benchmarks.artifacts import Artifact
from hermes_rl.benchmarks.decoy import DECOY
from hermes_rl.benchmarks.verification import RERUN_S, CollectHook, Verifier
from hermes_rl.benchmarks.verifier_run import ENDED, LOGS, STDOUT, TESTS, Harness
from hermes_rl.context import ToolContext
from hermes_rl.errors import (
    CreateError,
    RewardUnreadable,
    SandboxError,
    SandboxGone,
    VerifierBootstrapFailed,
    VerifierTimeout,
)
from hermes_rl.sandbox import Capability, Change, DirEntry, ExecResult
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.types import Reward

REPORT = orjson.dumps(
    {
        "results": {
            "summary": {"tests": 2, "passed": 1, "failed": 1},
            "tests": [
                {"name": "t1", "status": "passed", "extra": 1},
                {"name": "t2", "status": "failed"},
            ],
        }
    }
)


class Box(FakeSandbox):
    """A fake whose ``test.sh`` leaves the given files, one set per run.

    Attributes:
        steps: What was done, in words.
        options: Of each command.
    """

    def __init__(self, *runs: dict[str, bytes] | Exception, **result: Any) -> None:
        super().__init__(run=self._answer)
        self.runs = list(runs)
        self.result = {"exit_code": 0, **result}
        self.steps: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.refuses = ""
        self.leftovers = b""
        self.scripts: list[bytes] = []
        self.changed: list[Change] = []
        self.mtimes: dict[str, float] = {}

    async def exec(self, cmd: str | Sequence[str], **options: Any) -> ExecResult:
        self.options.append(options)
        return await super().exec(cmd, **options)

    def _answer(self, cmd: str | Sequence[str]) -> ExecResult:
        words = cmd if isinstance(cmd, str) else " ".join(cmd)
        if self.refuses and self.refuses in words:
            return ExecResult(exit_code=1, stderr=b"not today")
        if cmd == ["id", "-u"]:
            return ExecResult(exit_code=0, stdout=b"0\n")
        if isinstance(cmd, str) and cmd.startswith(f"{TESTS}/test.sh"):
            return self._test()
        if "/proc/" in words:
            return ExecResult(exit_code=0, stdout=self.leftovers)
        if cmd[0] == "tail":
            return ExecResult(exit_code=0, stdout=b"the end of the output")
        if "rm -rf" in words:
            self.steps.append("prepare")
            self._forget(f"{LOGS}/", f"{TESTS}/")
        elif "rm -f" in words:
            self._forget(f"{LOGS}/reward")
        elif isinstance(cmd, str):
            self.steps.append(cmd)
        return ExecResult(exit_code=0)

    def _forget(self, *prefixes: str) -> None:
        self.files = {n: d for n, d in self.files.items() if not n.startswith(prefixes)}

    def _test(self) -> ExecResult:
        self.steps.append("test")
        self.scripts.append(self.files[f"{TESTS}/test.sh"])
        left = self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]
        if isinstance(left, Exception):
            raise left
        self.files |= {f"{LOGS}/{name}": data for name, data in left.items()}
        self.files |= {STDOUT: b"", ENDED: b""}
        return ExecResult(**self.result)

    async def list(self, path: str, *, user: str | None = None) -> list[DirEntry]:
        return [
            DirEntry(e.name, e.kind, e.size_bytes, self.mtimes.get(e.name, 0.0), e.mode)
            for e in await super().list(path)
        ]

    async def changes(self, *, suspects: str = "") -> Sequence[Change]:
        self.steps.append("changes")
        return self.changed


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_checks, "REAPPEARS_WITHIN_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("#!/bin/sh\n")
    return tmp_path / "tests"


async def verify(
    folder: Path,
    box: Box,
    *,
    spare: Box | Exception | None = None,
    limit_s: float | None = None,
    kept: Path | None = None,
    env: dict[str, str] | None = None,
    workdir: str | None = None,
    **options: Any,
) -> Reward:
    @asynccontextmanager
    async def open_spare() -> AsyncIterator[Box]:
        if isinstance(spare, Exception):
            raise spare
        assert spare is not None, "no spare sandbox was expected"
        yield spare
        await spare.close()

    context = ToolContext(box, None, limit_s=limit_s, artifacts=kept, open_spare=open_spare)  # type: ignore[arg-type]
    harness = Harness(tests=folder, env=env or {}, workdir=workdir)
    return await Verifier(harness=harness, timeout_s=5.0, **options).run(context)


async def test_the_exit_code_means_nothing(folder: Path) -> None:
    for code, written, value in ((0, b"0", 0.0), (1, b"1", 1.0), (137, b"0.25", 0.25)):
        reward = await verify(folder, Box({"reward.txt": written}, exit_code=code))
        assert reward.value == value
        assert reward.evidence["test_exit_code"] == code


async def test_the_order_is_collect_compare_prepare_test(folder: Path) -> None:
    box = Box({"reward.txt": b"1"})
    box.capabilities = frozenset({Capability.CHANGES})
    await verify(folder, box, collect=[CollectHook(command="dump state")])
    assert box.steps == ["dump state", "changes", "prepare", "test"]


async def test_a_look_at_the_changes_that_takes_too_long_is_a_flag_and_the_tests_still_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Box):
        async def changes(self, *, suspects: str = "") -> Sequence[Change]:
            await anyio.sleep_forever()
            return []

    monkeypatch.setattr(verification, "LOOK_S", 0.05)
    box = Slow({"reward.txt": b"1"})
    box.capabilities = frozenset({Capability.CHANGES})
    reward = await verify(folder, box)
    assert reward.value == 1.0
    assert reward.flags == ("tamper_suspect: (what was changed) (not known after 0.05 s)",)


def test_hooks_the_look_and_further_runs_take_nothing_from_each_other(folder: Path) -> None:
    hooks = [CollectHook(command="dump", timeout_s=1000.0)] * 2
    verifier = Verifier(harness=Harness(tests=folder), timeout_s=5.0, collect=hooks)
    assert verifier.margin_s > 2000.0 + verification.LOOK_S + RERUN_S


async def test_only_the_declared_environment_is_passed_in_a_stateless_session(
    folder: Path,
) -> None:
    box = Box({"reward.txt": b"0"})
    await verify(folder, box, env={"A": "b"}, workdir="/w")
    (options,) = [
        options
        for options, cmd in zip(box.options, box.commands, strict=True)
        if isinstance(cmd, str) and cmd.startswith(f"{TESTS}/test.sh")
    ]
    assert options["env"] == {"A": "b"}
    assert options["cwd"] == "/w"
    assert options["session"] is None
    assert options["timeout_s"] == 5.0
    assert options["user"] is None
    assert box.files["/tests/test.sh"] == b"#!/bin/sh\n"


@pytest.mark.parametrize(("limit_s", "timeout_s"), [(None, 5.0), (2.0, 2.0), (60.0, 5.0)])
async def test_the_configurations_limit_caps_the_tests(
    folder: Path, limit_s: float | None, timeout_s: float
) -> None:
    box = Box({"reward.txt": b"0"})
    await verify(folder, box, limit_s=limit_s)
    assert timeout_s in [options["timeout_s"] for options in box.options]


async def test_a_stale_reward_does_not_count(folder: Path) -> None:
    box = Box({})
    box.files[f"{LOGS}/reward.txt"] = b"1"
    with pytest.raises(RewardUnreadable, match="neither"):
        await verify(folder, box, spare=Box({}))


async def test_no_end_in_time_is_an_error_even_with_a_reward(folder: Path) -> None:
    box = Box({"reward.txt": b"1"}, timed_out=True, exit_code=124)
    with pytest.raises(VerifierTimeout, match=r"(?s)did not end within its 5 s.*the end"):
        await verify(folder, box)
    assert box.steps.count("test") == 1


async def test_several_numbers_and_the_test_report_are_evidence(folder: Path) -> None:
    files = {"reward.json": b'{"reward": 0.5, "style": 1}', "ctrf.json": REPORT}
    reward = await verify(folder, Box(files))
    assert reward.value == 0.5
    assert reward.evidence["rewards"] == {"reward": 0.5, "style": 1.0}
    assert reward.evidence["ctrf"]["summary"] == {"tests": 2, "passed": 1, "failed": 1}
    assert reward.evidence["ctrf"]["tests"][1] == {"name": "t2", "status": "failed"}
    assert reward.flags == ()


@pytest.mark.parametrize(
    "content",
    [
        *(b"broken", b"{}", b'{"results": {"tests": 5}}', b"x" * (5 << 20)),
        b'{"results": {"summary": {"tests": 1e300}, "tests": []}}',
    ],
)
async def test_an_unreadable_test_report_does_not_change_the_reward(
    folder: Path, content: bytes
) -> None:
    reward = await verify(folder, Box({"reward.txt": b"1", "ctrf.json": content}))
    assert (reward.value, reward.flags) == (1.0, ())
    assert "ctrf_error" in reward.evidence


class BusyEngine(Box):
    """Its first pauses end before anything was read."""

    def __init__(self, *runs: Any, misses: int) -> None:
        super().__init__(*runs)
        self.capabilities = frozenset({Capability.PAUSE, Capability.ENGINE_ACCESS})
        self.misses = misses

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:  # type: ignore[override]
        self.steps.append("pause")
        yield
        if self.misses:
            self.misses -= 1
            raise SandboxError("Sandbox fake was paused longer than 5 s; it goes on.")
        self.steps.append("unpause")


async def test_the_reward_is_read_while_nothing_runs(folder: Path) -> None:
    box = BusyEngine({"reward.txt": b"0"}, misses=0)
    await verify(folder, box)
    assert box.steps == ["prepare", "test", "pause", "unpause"]


async def test_a_pause_that_was_too_short_is_tried_again_but_not_for_ever(folder: Path) -> None:
    box = BusyEngine({"reward.txt": b"0.5"}, misses=3)
    assert (await verify(folder, box)).value == 0.5
    assert box.steps.count("pause") == 4
    with pytest.raises(SandboxError, match="longer than 5 s"):
        await verify(folder, BusyEngine({"reward.txt": b"0.5"}, misses=4))


# Unsettled runs ---------------------------------------------------------------------------------


async def test_a_report_is_only_waited_for_where_the_tests_ask_for_one(folder: Path) -> None:
    box = Box({"reward.txt": b"0"})
    assert (await verify(folder, box)).value == 0.0
    assert box.steps.count("test") == 1


async def test_a_full_reward_without_a_report_is_settled(folder: Path) -> None:
    reward = await verify(folder, Box({"reward.txt": b"1"}), wants_report=True)
    assert reward.value == 1.0


async def test_what_works_the_second_time_counts(folder: Path) -> None:
    box = Box({"reward.txt": b"0"}, {"reward.txt": b"1", "ctrf.json": b"{}"})
    reward = await verify(folder, box, wants_report=True)
    assert (reward.value, reward.evidence["verifier_runs"]) == (1.0, 2)
    assert box.steps == ["prepare", "test", "prepare", "test"]


@pytest.mark.parametrize("left", [{"reward.txt": b"0"}, {}])
async def test_what_works_in_a_fresh_sandbox_was_broken_by_the_agent(
    folder: Path, left: dict[str, bytes]
) -> None:
    spare = Box({"reward.txt": b"0", "ctrf.json": REPORT})
    reward = await verify(folder, Box(left), spare=spare, wants_report=True)
    assert reward.value == 0.0
    assert "not in the agent's" in reward.evidence["agent_broke"]
    assert spare.closed == 1


async def test_a_pass_in_a_fresh_sandbox_is_not_the_agents_pass(folder: Path) -> None:
    spare = Box({"reward.txt": b"1", "ctrf.json": REPORT})
    assert (await verify(folder, Box({}), spare=spare)).value == 0.0


async def test_what_does_not_work_in_a_fresh_sandbox_either_is_an_error(folder: Path) -> None:
    boxes = [Box({"reward.txt": b"0"}) for _ in range(2)]
    with pytest.raises(VerifierBootstrapFailed, match=r"(?s)verifier_bootstrap: .*the end of"):
        await verify(folder, boxes[0], spare=boxes[1], wants_report=True)
    assert [box.steps.count("test") for box in boxes] == [2, 1]


async def test_a_fresh_sandbox_that_cannot_be_had_settles_nothing(folder: Path) -> None:
    box = Box({"reward.txt": b"0"})
    with pytest.raises(VerifierBootstrapFailed):
        await verify(folder, box, spare=CreateError("no room"), wants_report=True)


async def test_further_runs_share_what_is_left_of_the_time_but_have_enough(folder: Path) -> None:
    boxes = [Box({}), Box({"reward.txt": b"0"})]
    await verify(folder, boxes[0], spare=boxes[1])
    times = [o["timeout_s"] for box in boxes for o in box.options if o.get("env") is not None]
    assert times == [5.0, RERUN_S / 2, RERUN_S / 2]


async def test_an_agent_that_broke_the_set_up_scores_0(folder: Path) -> None:
    box = Box({"reward.txt": b"1"})
    box.refuses = "mkdir"
    reward = await verify(folder, box, spare=Box({"reward.txt": b"0"}))
    assert (reward.value, "agent_broke" in reward.evidence) == (0.0, True)


@pytest.mark.parametrize(("refuses", "message"), [("mkdir", "set up"), ("id -u", "run as user")])
async def test_a_set_up_that_never_works_is_an_error(
    folder: Path, refuses: str, message: str
) -> None:
    boxes = [Box({"reward.txt": b"1"}) for _ in range(2)]
    for box in boxes:
        box.refuses = refuses
    with pytest.raises(RewardUnreadable, match=f"{message}.*not today"):
        await verify(folder, boxes[0], spare=boxes[1])


async def test_a_lost_sandbox_is_the_sandboxs_error(folder: Path) -> None:
    with pytest.raises(SandboxGone):
        await verify(folder, Box(SandboxGone("gone", cause="oom", by_agent=True)))


# Passes, flags ----------------------------------------------------------------------------------


async def test_an_honest_pass_carries_no_flag(folder: Path) -> None:
    reward = await verify(folder, Box({"reward.txt": b"1"}))
    assert (reward.value, reward.flags) == (1.0, ())


async def test_changes_to_what_tests_need_are_flags_whatever_the_reward(folder: Path) -> None:
    box = Box({"reward.txt": b"0"})
    box.capabilities = frozenset({Capability.CHANGES})
    box.changed = [Change("/etc/ld.so.preload", "added")]
    (flag,) = (await verify(folder, box)).flags
    assert flag.startswith("tamper_suspect: /etc/ld.so.preload")


async def test_failed_tests_beside_a_full_reward_are_a_flag(folder: Path) -> None:
    (flag,) = (await verify(folder, Box({"reward.txt": b"1", "ctrf.json": REPORT}))).flags
    assert "1 failed tests" in flag


async def test_a_reward_newer_than_the_end_of_the_tests_is_a_flag(folder: Path) -> None:
    box = Box({"reward.txt": b"1"})
    box.mtimes = {".ended": 10.0, "reward.txt": 10.1}
    (flag,) = (await verify(folder, box)).flags
    assert "written after" in flag


async def test_tests_that_changed_meanwhile_are_a_flag(folder: Path) -> None:
    for change in ({f"{TESTS}/test.sh": b"#!/bin/sh\necho"}, {f"{TESTS}/test.sh": b""}):

        class Meddler(Box):
            def _test(self, change: dict[str, bytes] = change) -> ExecResult:
                self.files |= change
                return super()._test()

        (flag,) = (await verify(folder, Meddler({"reward.txt": b"1"}))).flags
        assert "/tests/test.sh is not what was uploaded" in flag


async def test_a_reward_that_comes_back_is_a_flag(folder: Path) -> None:
    class Stubborn(Box):
        def _forget(self, *prefixes: str) -> None:
            if prefixes != (f"{LOGS}/reward",):
                super()._forget(*prefixes)

    (flag,) = (await verify(folder, Stubborn({"reward.txt": b"1"}))).flags
    assert "came back" in flag


async def test_without_processes_there_is_no_rehearsal(folder: Path) -> None:
    box = Box({"reward.txt": b"0"})
    await verify(folder, box)
    assert box.scripts == [b"#!/bin/sh\n"]


async def test_a_rehearsal_that_nobody_spoils_is_no_flag(folder: Path) -> None:
    box = Box({"reward.txt": b"0\n"}, {"reward.txt": b"1"})
    box.leftovers = b"17 python3\n"
    reward = await verify(folder, box)
    assert (reward.value, reward.flags) == (1.0, ())
    assert box.scripts == [DECOY.encode(), b"#!/bin/sh\n"]


@pytest.mark.parametrize(
    "spoiled",
    [
        {"reward.txt": b"1\n"},
        {"reward.txt": b""},
        {"reward.txt": b"0\n", "reward.json": b"{}"},
        {"reward.json": b'{"reward": 1}'},
        {"reward.txt": b"1" * 70_000},
    ],
)
async def test_whoever_spoils_the_rehearsal_is_a_flag_whatever_comes_of_the_tests(
    folder: Path, spoiled: dict[str, bytes]
) -> None:
    box = Box(spoiled, {"reward.txt": b"0.5"})
    box.leftovers = b"17 sh\n"
    reward = await verify(folder, box)
    assert reward.value == 0.5
    (flag,) = reward.flags
    assert "a process that was left running" in flag


async def test_a_reward_that_a_known_spoiler_made_unreadable_is_a_zero(folder: Path) -> None:
    box = Box({"reward.txt": b"1\n"}, {"reward.txt": b""})
    box.leftovers = b"17 sh\n"
    reward = await verify(folder, box)
    assert reward.value == 0.0
    assert "which is no number" in reward.evidence["agent_broke"]
    assert len(reward.flags) == 1


# What is kept -----------------------------------------------------------------------------------


async def test_artifacts_are_kept_and_what_cannot_be_is_named(folder: Path, tmp_path: Path) -> None:
    box = Box({"reward.txt": b"0"})
    box.files["/app/out.txt"] = b"made"
    artifacts = [
        Artifact(source="/app/out.txt"),
        Artifact(source="/app/out.txt", destination="../../x/result.txt"),
        Artifact(source="/app/none"),
    ]
    reward = await verify(folder, box, artifacts=artifacts, kept=tmp_path / "kept")
    assert reward.evidence["artifacts"] == ["app/out.txt", "x/result.txt"]
    assert list(reward.evidence["artifacts_failed"]) == ["/app/none"]
    assert (tmp_path / "kept/app/out.txt").read_bytes() == b"made"
    assert (tmp_path / "kept/x/result.txt").read_bytes() == b"made"


async def test_without_a_place_for_them_artifacts_are_not_copied(folder: Path) -> None:
    reward = await verify(folder, Box({"reward.txt": b"0"}), artifacts=[Artifact(source="/x")])
    assert "artifacts_failed" not in reward.evidence


async def test_a_failing_hook_is_evidence_and_no_error(folder: Path) -> None:
    box = Box({"reward.txt": b"1"})
    box.refuses = "dump"
    reward = await verify(folder, box, collect=[CollectHook(command="dump state")])
    assert reward.value == 1.0
    assert reward.evidence["collect_failed"] == [{"command": "dump state", "exit_code": 1}]
