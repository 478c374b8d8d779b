"""Owners: who is judged dead, and from where."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.backends.ownership import (
    DEADLINE_LABEL,
    DEADLINE_MARGIN_S,
    OWNER_LABEL,
    RUN_LABEL,
    Owner,
    judge,
    labels_for,
)
from tests.conftest import require

ME = Owner.current()
NOW_S = 1_000_000.0
PRINT_OWNER = "from hermes_rl.backends.ownership import Owner; print(Owner.current())"


def _labels(owner: Owner, *, lease_s: float = 100.0) -> dict[str, str]:
    return labels_for("run-1", owner=owner, now_s=NOW_S, lease_s=lease_s, extra={})


@pytest.fixture(scope="module")
def ended() -> Owner:
    """An owner on this machine, boot and namespace whose process has ended."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_OWNER], check=True, capture_output=True, text=True
    )
    owner = Owner.parse(done.stdout.strip())
    assert owner is not None
    return owner


def test_an_owner_survives_being_written_and_read() -> None:
    assert Owner.parse(str(ME)) == ME


def test_the_label_names_machine_boot_namespace_pid_and_start() -> None:
    machine, boot, namespace, pid, start = str(ME).split(":")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert os.readlink("/proc/self/ns/pid") == f"pid:[{namespace}]"
    assert int(pid) == os.getpid()
    assert int(start) > 0
    assert machine


@pytest.mark.parametrize("label", ["", "a:b", "a:b:c:x:1", "a:b:c:1:-1", "a:b:c:1:2:3"])
def test_what_is_no_owner_is_not_read_as_one(label: str) -> None:
    assert Owner.parse(label) is None


def test_a_running_process_is_not_dead() -> None:
    assert not ME.is_dead(seen_from=ME)


def test_an_ended_process_is_dead(ended: Owner) -> None:
    assert ended.is_dead(seen_from=ME)


def test_a_pid_used_again_by_a_later_process_is_dead() -> None:
    assert dataclasses.replace(ME, start=ME.start - 1).is_dead(seen_from=ME)


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", PRINT_OWNER], stdout=subprocess.PIPE)
    assert child.stdout is not None
    owner = Owner.parse(child.stdout.read().decode().strip())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert owner is not None
        assert owner.is_dead(seen_from=ME)
    finally:
        child.wait()


@pytest.mark.parametrize("field", ["machine", "boot", "namespace"])
def test_a_foreign_owner_is_never_judged_dead(ended: Owner, field: str) -> None:
    foreign = dataclasses.replace(ended, **{field: "elsewhere"})
    assert not foreign.is_dead(seen_from=ME)
    assert judge(_labels(foreign), seen_from=ME, now_s=NOW_S) == "keep"


HIDDEN = """
import os, sys
from hermes_rl.backends.ownership import Owner
me = Owner.current()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
for label in sys.argv[1:]:
    print(os.path.exists(f"/proc/{label.split(':')[3]}"), Owner.parse(label).is_dead(seen_from=me))
"""


def test_another_users_process_that_proc_hides_is_not_dead(ended: Owner) -> None:
    hide = "mount -t proc -o hidepid=2 proc /proc"
    unshare = ["unshare", "--mount", "sh", "-c", f'{hide} && exec "$@"', "sh"]
    possible = os.geteuid() == 0 and subprocess.run([*unshare, "true"], check=False).returncode == 0
    require(possible, "needs root and the right to mount /proc")
    words = [*unshare, sys.executable, "-c", HIDDEN, str(ME), str(ended)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "False", "True"]


@pytest.mark.parametrize("field", ["boot", "namespace"])
def test_where_a_place_has_no_name_no_one_is_judged_dead(ended: Owner, field: str) -> None:
    nowhere = dataclasses.replace(ended, **{field: ""})
    assert not nowhere.is_dead(seen_from=dataclasses.replace(ME, **{field: ""}))


def test_a_process_id_beyond_any_is_dead() -> None:
    assert dataclasses.replace(ME, pid=1 << 80).is_dead(seen_from=ME)


def test_a_foreign_owners_deadline_counts(ended: Owner) -> None:
    foreign = dataclasses.replace(ended, namespace="elsewhere")
    late_s = NOW_S + 100 + DEADLINE_MARGIN_S + 1
    assert judge(_labels(foreign), seen_from=ME, now_s=late_s) == "expired"


def test_a_dead_owners_resource_goes_at_once(ended: Owner) -> None:
    assert judge(_labels(ended), seen_from=ME, now_s=NOW_S) == "owner dead"


@pytest.mark.parametrize(
    ("after_s", "verdict"), [(0, "keep"), (100, "keep"), (100 + DEADLINE_MARGIN_S + 1, "expired")]
)
def test_a_living_owners_resource_lives_until_its_deadline(after_s: float, verdict: str) -> None:
    assert judge(_labels(ME), seen_from=ME, now_s=NOW_S + after_s) == verdict


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {RUN_LABEL: "r"},
        {OWNER_LABEL: "garbage"},
        {DEADLINE_LABEL: "1", "maintainer": "someone"},
    ],
)
def test_what_we_did_not_label_is_kept(labels: dict[str, str]) -> None:
    assert judge(labels, seen_from=ME, now_s=NOW_S) == "keep"


def test_an_unreadable_deadline_never_expires() -> None:
    labels = {**_labels(ME), DEADLINE_LABEL: "soon"}
    assert judge(labels, seen_from=ME, now_s=NOW_S * 2) == "keep"


def test_extra_labels_cannot_replace_ours() -> None:
    extra = {OWNER_LABEL: "me", "task": "t"}
    labels = labels_for("run-1", owner=ME, now_s=0, lease_s=1, extra=extra)
    assert labels[OWNER_LABEL] == str(ME)
    assert labels["task"] == "t"
