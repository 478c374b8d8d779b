from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from hermes_rl.benchmarks.verification import (
    Verifier,
    parse_reward_json,
    parse_reward_text,
)
from hermes_rl.errors import RewardError
from hermes_rl.sandbox import ExecResult
from hermes_rl.testing.fake_sandbox import FakeSandbox

LOGS = "/logs/verifier"


class Scripted(FakeSandbox):
    """A fake whose ``test.sh`` leaves the given files."""

    def __init__(self, files: dict[str, bytes], **result: Any) -> None:
        super().__init__(run=self._answer)
        self.left = files
        self.result = {"exit_code": 0, **result}
        self.options: list[dict[str, Any]] = []

    async def exec(self, cmd: str | Sequence[str], **options: Any) -> ExecResult:
        self.options.append(options)
        return await super().exec(cmd, **options)

    def _answer(self, cmd: str | Sequence[str]) -> ExecResult:
        if cmd == ["id", "-u"]:
            return ExecResult(exit_code=0, stdout=b"0\n")
        if isinstance(cmd, str) and cmd.startswith("/tests/test.sh"):
            self.files |= {f"{LOGS}/{name}": data for name, data in self.left.items()}
            return ExecResult(**self.result)
        if cmd[0] == "tail":
            return ExecResult(exit_code=0, stdout=b"the end of the output")
        if "rm -rf" in cmd[-1]:
            self.files = {n: d for n, d in self.files.items() if not n.startswith(LOGS)}
        return ExecResult(exit_code=0)


@pytest.fixture
def tests_folder(tmp_path: Path) -> Path:
    (tmp_path / "test.sh").write_text("#!/bin/sh\n")
    return tmp_path


async def run(folder: Path, sandbox: FakeSandbox, **options: Any) -> Any:
    return await Verifier(tests=folder, timeout_s=5.0, **options).run(sandbox)


@pytest.mark.parametrize(
    ("files", "exit_code", "expected"),
    [
        ({"reward.txt": b"1"}, 0, 1.0),
        ({"reward.txt": b"1\n"}, 1, 1.0),
        ({"reward.txt": b"0"}, 0, 0.0),
        ({"reward.txt": b" 0.25 \n"}, 137, 0.25),
        ({"reward.json": b'{"reward": 0.5}'}, 0, 0.5),
        ({"reward.json": b'{"score": 1}'}, 0, 1.0),
        ({"reward.json": b'{"a": 0, "reward": 1, "b": 2}'}, 0, 1.0),
        ({"reward.json": b'{"reward": 0}', "reward.txt": b"1"}, 0, 0.0),
        ({"reward.txt": b"-1"}, 0, -1.0),
    ],
)
async def test_the_files_decide_and_the_exit_code_does_not(
    tests_folder: Path, files: dict[str, bytes], exit_code: int, expected: float
) -> None:
    reward = await run(tests_folder, Scripted(files, exit_code=exit_code))
    assert reward.value == expected
    assert reward.evidence["test_exit_code"] == exit_code


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"neither reward.json nor reward.txt.*the end of the output"),
        ({"reward.txt": b""}, "no number"),
        ({"reward.txt": b"one"}, "'one', which is no number"),
        ({"reward.txt": b"nan"}, "not finite"),
        ({"reward.txt": b"inf"}, "not finite"),
        ({"reward.json": b""}, "not valid JSON"),
        ({"reward.json": b"{}"}, "object of finite numbers"),
        ({"reward.json": b"1"}, "object of finite numbers"),
        ({"reward.json": b'{"reward": "1"}'}, "object of finite numbers"),
        ({"reward.json": b'{"reward": true}'}, "object of finite numbers"),
        ({"reward.json": b'{"reward": NaN}'}, "not valid JSON"),
        ({"reward.json": b'{"reward": {"a": 1}}'}, "object of finite numbers"),
        ({"reward.json": b'{"a": 1, "b": 0}'}, "none of them 'reward'"),
        ({"reward.json": b"broken", "reward.txt": b"1"}, "not valid JSON"),
        ({"reward.txt": b"1" * 70_000}, "cannot be read"),
    ],
)
async def test_no_readable_reward_is_an_error_and_no_zero(
    tests_folder: Path, files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(RewardError, match=f"(?s){message}"):
        await run(tests_folder, Scripted(files))


async def test_a_stale_reward_does_not_count(tests_folder: Path) -> None:
    sandbox = Scripted({})
    sandbox.files[f"{LOGS}/reward.txt"] = b"1"
    with pytest.raises(RewardError, match="neither"):
        await run(tests_folder, sandbox)


async def test_a_verifier_that_runs_out_of_time_is_an_error_even_with_a_reward(
    tests_folder: Path,
) -> None:
    sandbox = Scripted({"reward.txt": b"1"}, timed_out=True, exit_code=124)
    with pytest.raises(RewardError, match=r"(?s)did not end within its 5 s.*the end"):
        await run(tests_folder, sandbox)


async def test_only_the_declared_environment_is_passed_in_a_stateless_session(
    tests_folder: Path,
) -> None:
    sandbox = Scripted({"reward.txt": b"1"})
    await run(tests_folder, sandbox, env={"A": "b"}, workdir="/w")
    (options,) = [
        o
        for o, cmd in zip(sandbox.options, sandbox.commands, strict=True)
        if isinstance(cmd, str) and "/tests/test.sh" in cmd
    ]
    assert options["env"] == {"A": "b"}
    assert options["cwd"] == "/w"
    assert options["session"] is None
    assert options["timeout_s"] == 5.0
    assert sandbox.files["/tests/test.sh"] == b"#!/bin/sh\n"


async def test_the_test_report_is_kept_as_evidence(tests_folder: Path) -> None:
    tests = [{"name": "t1", "status": "passed", "extra": 1}, {"name": "t2", "status": "failed"}]
    ctrf = {"results": {"summary": {"tests": 2, "passed": 1, "failed": 1}, "tests": tests}}
    sandbox = Scripted({"reward.txt": b"0", "ctrf.json": orjson.dumps(ctrf)})
    evidence = (await run(tests_folder, sandbox)).evidence
    assert evidence["ctrf"]["summary"] == {"tests": 2, "passed": 1, "failed": 1}
    assert evidence["ctrf"]["tests"][1] == {"name": "t2", "status": "failed"}


@pytest.mark.parametrize(
    "content", [b"broken", b"{}", b'{"results": {"tests": 5}}', b"x" * (5 << 20)]
)
async def test_an_unreadable_test_report_does_not_change_the_reward(
    tests_folder: Path, content: bytes
) -> None:
    reward = await run(tests_folder, Scripted({"reward.txt": b"1", "ctrf.json": content}))
    assert reward.value == 1.0
    assert "ctrf_error" in reward.evidence


async def test_an_unknown_verifier_user_is_an_error(tests_folder: Path) -> None:
    sandbox = FakeSandbox(run=lambda _: ExecResult(exit_code=1, stderr=b"no such user"))
    with pytest.raises(RewardError, match="user ghost does not exist"):
        await run(tests_folder, sandbox, user="ghost")


def test_the_parsers_alone() -> None:
    assert parse_reward_text(b"1e-1") == 0.1
    assert parse_reward_json(b'{"x": 2}') == (2.0, {"x": 2.0})
