"""Who owns a resource that outlives a crash, and whether that owner still lives.

Every container, volume or directory made for a run carries three labels: the run's id, its owner
and its deadline. An owner is one process, written as ``machine:boot:pid-namespace:pid:start``.
Whether it lives can be judged only from the same machine, boot and pid namespace: anywhere else
the same pid means another process. So a foreign owner's resources count only by their deadline.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

__all__ = [
    "DEADLINE_LABEL",
    "DEADLINE_MARGIN_S",
    "OWNER_LABEL",
    "RUN_LABEL",
    "Owner",
    "Verdict",
    "judge",
    "labels_for",
]

RUN_LABEL = "hermes.run"
OWNER_LABEL = "hermes.owner"
DEADLINE_LABEL = "hermes.deadline"
"""Unix time in whole seconds."""
DEADLINE_MARGIN_S = 30.0
"""The sandbox ends itself at its deadline; a sweep waits this long for that, and for clock skew."""

Verdict = Literal["keep", "owner dead", "expired"]


@dataclass(slots=True, frozen=True)
class Owner:
    """One process on one machine, distinguishable from a later one with the same pid.

    Attributes:
        machine: /etc/machine-id, ``none`` where there is none.
        boot: The kernel's boot id.
        namespace: Inode of the pid namespace, empty if unknown: then no one is judged.
        pid: Process id within that namespace.
        start: Start time in clock ticks since boot.
    """

    machine: str
    boot: str
    namespace: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> Self:
        """Describe this process."""
        return cls(
            machine=_first_line("/etc/machine-id") or "none",
            boot=_first_line("/proc/sys/kernel/random/boot_id"),
            namespace=_pid_namespace(),
            pid=os.getpid(),
            start=_start_time(os.getpid()) or 0,
        )

    @classmethod
    def parse(cls, label: str) -> Self | None:
        """Read a label; None if it is no owner."""
        parts = label.split(":")
        if len(parts) != 5 or not (parts[3].isdecimal() and parts[4].isdecimal()):
            return None
        machine, boot, namespace, pid, start = parts
        return cls(machine, boot, namespace, int(pid), int(start))

    def __str__(self) -> str:
        return f"{self.machine}:{self.boot}:{self.namespace}:{self.pid}:{self.start}"

    def is_dead(self, *, seen_from: Owner) -> bool:
        """Tell whether the owner surely lives no more; False wherever that cannot be judged."""
        place = (self.boot, self.namespace)
        if "" in place or (self.machine, *place) != (
            seen_from.machine,
            seen_from.boot,
            seen_from.namespace,
        ):
            return False
        try:
            return _start_time(self.pid) != self.start
        except PermissionError:
            return False


def labels_for(
    run_id: str, *, owner: Owner, now_s: float, lease_s: float, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the labels of a resource made now that may live ``lease_s`` seconds."""
    return {
        **extra,
        RUN_LABEL: run_id,
        OWNER_LABEL: str(owner),
        DEADLINE_LABEL: str(math.ceil(now_s + lease_s)),
    }


def judge(labels: Mapping[str, str], *, seen_from: Owner, now_s: float) -> Verdict:
    """Say whether a labelled resource should be removed, and why.

    What lacks the owner label, or has labels we cannot read, is not ours: keep.
    """
    owner = Owner.parse(labels.get(OWNER_LABEL, ""))
    if owner is None:
        return "keep"
    if owner.is_dead(seen_from=seen_from):
        return "owner dead"
    deadline = labels.get(DEADLINE_LABEL, "")
    if deadline.isdecimal() and now_s > int(deadline) + DEADLINE_MARGIN_S:
        return "expired"
    return "keep"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Start time of a running process in ticks since boot; None for no process or a zombie.

    Raises:
        PermissionError: There is one, but /proc hides it (``hidepid``): another user's.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except PermissionError:
        raise
    except OSError:
        if _is_another_users(pid):
            raise PermissionError(f"/proc hides process {pid}") from None
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _is_another_users(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False
