"""A real sshd on a loopback port, with its own keys and configuration; needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import require

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
PATIENCE_S = 20.0
CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
PidFile none
AuthorizedKeysFile {directory}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
MaxStartups 50:30:100
"""


def make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, timeout=30)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Sshd:
    """One server, its files, and what a client needs."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    extra: str = ""

    @property
    def key(self) -> Path:
        return self.directory / "client_key"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def host(self) -> str:
        return f"root@127.0.0.1:{self.port}"

    def options(self, **more: object) -> dict[str, object]:
        """Return backend options that reach this server and nothing else."""
        return {
            "hosts": [self.host],
            "keys": [str(self.key)],
            "config": [],
            "known_hosts": str(self.known_hosts),
            "directory": str(self.sandboxes),
            **more,
        }

    @property
    def sandboxes(self) -> Path:
        return self.directory / "sandboxes"

    def left(self) -> list[str]:
        """Return the directories of sandboxes that are there."""
        if not self.sandboxes.exists():
            return []
        return sorted(path.name for path in self.sandboxes.iterdir() if path.name[:4] == "ssh-")

    def start(self) -> None:
        text = CONFIGURATION.format(port=self.port, directory=self.directory) + self.extra
        (self.directory / "sshd_config").write_text(text)
        log = (self.directory / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(self.directory / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.02)

    def children(self) -> list[int]:
        """Return the processes of its connections."""
        assert self.process is not None
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=PATIENCE_S)
            self.process = None


@contextlib.contextmanager
def running_sshd(directory: Path, extra: str = "") -> Iterator[Sshd]:
    """Run a server that lets one key log in; skips where there is none, or no root."""
    require(SSHD is not None, "needs sshd (apt install openssh-server)")
    require(os.getuid() == 0, "needs root, to start sshd")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    server = Sshd(directory, free_port(), extra=extra)
    make_key(directory / "host_key")
    make_key(server.key)
    public = server.key.with_suffix(".pub").read_text()
    (directory / "authorized_keys").write_text(public)
    host_key = (directory / "host_key.pub").read_text()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {host_key}")
    server.start()
    try:
        yield server
    finally:
        server.stop()
