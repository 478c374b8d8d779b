"""CPU seconds that all parties to a command have used: engine, daemon, shims and containers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["cpu_seconds"]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DAEMONS = ("dockerd", "containerd")


def cpu_seconds(containers: Iterable[str]) -> float:
    """Sum over this process and its ended children, the daemons, and the containers' own.

    Args:
        containers: Full container ids; their shims (with the runc calls those made) and cgroups
            are counted.
    """
    ids = tuple(containers)
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            name = os.path.basename(words[0].decode())
            is_shim = (
                name.startswith("containerd-shim")
                and words[words.index(b"-id") + 1].decode() in ids
            )
            if name in DAEMONS or is_shim:
                fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
                total += sum(map(int, fields[11:15])) / TICKS_PER_S
        except (OSError, ValueError):
            continue
    return total + sum(map(_cgroup_seconds, ids))


def _cgroup_seconds(container: str) -> float:
    version1 = Path("/sys/fs/cgroup/cpuacct/docker", container, "cpuacct.usage")
    if version1.exists():
        return int(version1.read_text()) / 1e9
    for version2 in (
        Path("/sys/fs/cgroup/docker", container, "cpu.stat"),
        Path(f"/sys/fs/cgroup/system.slice/docker-{container}.scope/cpu.stat"),
    ):
        if version2.exists():
            return int(version2.read_text().split()[1]) / 1e6
    return 0.0
