"""A Docker daemon of the tests' own: own socket, data and pid file; may be killed at will."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

__all__ = ["SecondDaemon"]

START_LIMIT_S = 60.0
PROGRAMS = ("bash", "sleep", "cat", "ls", "mkdir", "seq")
IMAGE = "hermes-tiny:latest"


class SecondDaemon:
    """Start and stop it with :meth:`start` and :meth:`stop`, as often as needed.

    Its containerd is a process of its own, as on most machines: it outlives a killed dockerd.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = f"unix://{directory}/sock"
        self._containerd = self._spawn(
            "containerd",
            *("--root", f"{directory}/containerd", "--state", f"{directory}/state"),
            *("--address", f"{directory}/containerd.sock"),
        )
        self._dockerd: subprocess.Popen[bytes] | None = None

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        self._dockerd = self._spawn(
            # Without a bridge of its own a daemon removes docker0, whosever it is: so it gets a
            # network namespace of its own.
            *("unshare", "--net", "dockerd"),
            *("--data-root", f"{self.directory}/data", "--exec-root", f"{self.directory}/exec"),
            *("--containerd", f"{self.directory}/containerd.sock"),
            *("--pidfile", f"{self.directory}/pid", "--host", self.host),
            *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"),
        )
        deadline_s = time.monotonic() + START_LIMIT_S
        while subprocess.run(self._docker("version"), capture_output=True, check=False).returncode:
            if time.monotonic() > deadline_s or self._dockerd.poll() is not None:
                raise AssertionError((self.directory / "log").read_text()[-2000:])
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the daemon's end."""
        if self._dockerd is not None:
            self._dockerd.send_signal(number)
            self._dockerd.wait(timeout=60)
            self._dockerd = None

    def close(self) -> None:
        """Stop everything for good and remove its files."""
        if self._dockerd is None:
            self.start()
        for container in self.containers():
            subprocess.run(self._docker("rm", "-f", container), capture_output=True, check=False)
        self.stop()
        self._containerd.terminate()
        self._containerd.wait(timeout=60)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([path for path in mounts if path.startswith(f"{self.directory}/")]):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.directory)

    def containers(self) -> list[str]:
        """Ids of all containers, in every state."""
        listed = subprocess.run(self._docker("ps", "-aq"), capture_output=True, check=True)
        return listed.stdout.decode().split()

    def import_tiny_image(self) -> str:
        """Import an image of a shell and a few programs of this machine; return its name."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in _with_libraries(PROGRAMS):
                archive.add(os.path.realpath(path), arcname=path.lstrip("/"))
            for name in ("tmp", "root"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
        command = self._docker("import", "--change", "WORKDIR /root", "-", IMAGE)
        subprocess.run(command, input=buffer.getvalue(), check=True, capture_output=True)
        return IMAGE

    def _docker(self, *words: str) -> list[str]:
        return ["docker", "--host", self.host, *words]


def _with_libraries(programs: tuple[str, ...]) -> set[str]:
    paths = {f"/bin/{name}" for name in programs}
    for name in programs:
        listed = subprocess.run(["ldd", f"/bin/{name}"], capture_output=True, text=True, check=True)
        words = [word for line in listed.stdout.splitlines() for word in line.split()]
        paths |= {word for word in words if word.startswith("/")}
    return paths
