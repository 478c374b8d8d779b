"""The list of :mod:`hermes_rl.tamper` without a container; its checks: tests/integration."""

import re

import pytest

from hermes_rl.sandbox import UNFINISHED_SEARCH, Change, ExecResult
from hermes_rl.tamper import MAX_CHECKED, MAX_FLAGS, SUSPECTS, tamper_flags
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.testing.loop_monitor import run_without_long_callbacks


async def test_without_a_listed_path_nothing_is_run() -> None:
    sandbox = FakeSandbox()
    changes = [Change("/app/main.py", "added"), Change("/usr/lib/x.so", "modified")]
    assert await tamper_flags(sandbox, changes) == ()
    assert sandbox.commands == []


async def test_what_is_only_deleted_is_no_flag() -> None:
    assert await tamper_flags(FakeSandbox(), [Change("/usr/bin/curl", "deleted")]) == ()


async def test_a_flood_of_changes_is_flagged_unseen() -> None:
    changes = [Change(f"/usr/lib/python3/dist-packages/{n}.pth", "added") for n in range(420)]
    flags = await tamper_flags(FakeSandbox(), changes)
    assert len(flags) == MAX_FLAGS + 1
    assert flags[-1] == f"tamper_suspect: {420 - MAX_FLAGS} more paths (not looked at)"
    assert sum("not looked at" in flag for flag in flags[:-1]) == MAX_FLAGS - MAX_CHECKED


async def test_a_million_flags_would_be_one_too_many() -> None:
    changes = [Change(f"/usr/lib/python3/{n}.pth", "added") for n in range(20_000)]
    flags = await run_without_long_callbacks(lambda: tamper_flags(FakeSandbox(), changes))
    assert len(flags) == MAX_FLAGS + 1
    assert flags[-1] == f"tamper_suspect: {20_000 - MAX_FLAGS} more paths (not looked at)"
    first = sorted(change.path for change in changes)[:MAX_FLAGS]
    assert [flag.split()[1] for flag in flags[:-1]] == first


async def test_a_search_that_was_kept_from_its_end_is_a_flag() -> None:
    (flag,) = await tamper_flags(FakeSandbox(), [Change(UNFINISHED_SEARCH, "modified")])
    assert flag.startswith(f"tamper_suspect: {UNFINISHED_SEARCH} (")


def test_no_path_costs_the_pattern_more_than_its_length() -> None:
    """Of all that repeats, one thing goes beyond a name, once and without a way back."""
    repeated = re.findall(r"(\[[^]]*\]|\\?.)[*+{]", SUSPECTS)
    assert set(repeated) == {r"[\d.]", "[^/]", "."}
    assert repeated.count(".") == SUSPECTS.count("(?>.*/)") == 1


@pytest.mark.parametrize("path", ["/a" * 2000, "/.local/lib/python3x" * 200, "/usr/lib" * 500])
async def test_long_paths_of_many_names_are_none(path: str) -> None:
    assert not re.match(SUSPECTS, path)
    assert await tamper_flags(FakeSandbox(), [Change(path, "added")]) == ()
    (flag,) = await tamper_flags(FakeSandbox(), [Change(f"/usr{path}/x.pth", "added")])
    assert re.match(SUSPECTS, f"/usr{path}/x.pth")
    assert f"/usr{path}/x.pth" in flag


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/curl",
        "/bin/sh",
        "/usr/local/bin/python3.12",
        "/root/.local/bin/uvx",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/etc/ld.so.preload",
        "/pytest.ini",
        "/root/.wgetrc",
        "/usr/local/lib/python3.13/site-packages/evil.pth",
        "/etc/python3.11/sitecustomize.py",
        "/root/.local/lib/python3.11/site-packages/usercustomize.py",
        "/root/.local/bin/env",
    ],
)
async def test_listed_paths_that_cannot_be_accounted_for_are_flags(path: str) -> None:
    (flag,) = await tamper_flags(FakeSandbox(), [Change(path, "added")])
    assert flag.startswith(f"tamper_suspect: {path} (")
    assert re.match(SUSPECTS, path)


@pytest.mark.parametrize(
    "path",
    [
        "/app/curl",
        "/app/conftest.py",
        "/app/.venv/bin/python",
        "/app/.venv/lib/python3.11/site-packages/_virtualenv.pth",
        "/home/other/.curlrc",
        "/usr/bin/curlew",
        "/usr/bin/curl\nx",
        "/etc/ld.so.cache",
    ],
)
async def test_other_paths_are_none(path: str) -> None:
    assert await tamper_flags(FakeSandbox(), [Change(path, "added")]) == ()


async def test_output_that_makes_no_sense_clears_nothing() -> None:
    sandbox = FakeSandbox(run=lambda _: ExecResult(exit_code=0, stdout=b"a\tb\n\x00\xff: : :\n\n"))
    (flag,) = await tamper_flags(sandbox, [Change("/usr/bin/curl", "added")])
    assert "/usr/bin/curl" in flag


async def test_a_hundred_thousand_changes_do_not_hold_the_event_loop() -> None:
    changes = [Change(f"/app/data/{n}/file.py", "added") for n in range(100_000)]
    flags = await run_without_long_callbacks(lambda: tamper_flags(FakeSandbox(), changes))
    assert flags == ()
