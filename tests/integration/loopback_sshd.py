"""A real sshd on a loopback port, with its own keys and configuration; needs root."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hermes_rl.sandbox import Backend, BackendSettings, open_backend
from tests.conftest import require

from .free_port import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
PATIENCE_S = 60.0
GUEST = "hermes-guest"
"""A login without rights, which only the server's own /etc/passwd knows."""
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


@dataclass(slots=True)
class Sshd:
    """One server, its files, and what a client needs."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    extra: str = ""
    setup: str = ""
    """Shell commands that come first, in a mount namespace of the server's own."""
    user: str = "root"
    uid: int = 0

    @property
    def key(self) -> Path:
        return self.directory / "client_key"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def host(self) -> str:
        return f"{self.user}@127.0.0.1:{self.port}"

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

    def backend(self, **options: object) -> Backend:
        """Return a backend whose only host is this server."""
        settings = BackendSettings(run_id="test", options=self.options(**options))
        return open_backend("ssh", settings)

    @property
    def sandboxes(self) -> Path:
        return self.directory / ("sandboxes" if self.user == "root" else "home/sandboxes")

    def seen(self, path: Path) -> Path:
        """Return the way from here to a path as the server sees it."""
        if self.setup and self.process is not None:
            return Path(f"/proc/{self.process.pid}/root{path}")
        return path

    def left(self) -> list[str]:
        """Return the directories of sandboxes that are there."""
        top = self.seen(self.sandboxes)
        if not top.exists():
            return []
        return sorted(path.name for path in top.iterdir() if path.name[:4] == "ssh-")

    def left_in_the_end(self) -> list[str]:
        """Return what is still there when the host has had time to remove it."""
        end = time.monotonic() + PATIENCE_S
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def start(self) -> None:
        text = CONFIGURATION.format(port=self.port, directory=self.directory) + self.extra
        (self.directory / "sshd_config").write_text(text)
        words = [str(SSHD), "-D", "-e", "-f", str(self.directory / "sshd_config")]
        if self.setup:
            script = f'{self.setup}\nexec "$@"'
            words = ["unshare", "-m", "--propagation", "private", "sh", "-ec", script, "sh", *words]
        log = (self.directory / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                words,
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

    def processes_of_its_user(self) -> list[str]:
        """Return the command lines of all that its login has here."""
        words = ["ps", "-o", "args=", "-u", str(self.uid)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

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
def running_sshd(
    directory: Path, extra: str = "", *, setup: str = "", user: str = "root", uid: int = 0
) -> Iterator[Sshd]:
    """Run a server that lets one key log in; skips where there is none, or no root."""
    require(SSHD is not None, "needs sshd (apt install openssh-server)")
    require(os.getuid() == 0, "needs root, to start sshd")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    server = Sshd(directory, free_port(), extra=extra, setup=setup, user=user, uid=uid)
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


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A host; nothing may be left on it when its module's tests are over."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server
        assert server.left_in_the_end() == []


@contextlib.contextmanager
def sshd_for_guest(*, disk_mb: int = 0) -> Iterator[Sshd]:
    """Run a server whose login is a user without rights, with a home of its own.

    Args:
        disk_mb: Size of the home's own disk; 0 = it has none.
    """
    with tempfile.TemporaryDirectory(prefix="hermes-guest-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)  # pytest's own directories are closed to others
        home = directory / "home"
        home.mkdir()
        # Of its own: what kills all that a user has must not reach another test's.
        uid = 30_000 + secrets.randbelow(30_000)
        os.chown(home, uid, uid)
        line = f"{GUEST}:*:{uid}:{uid}::{home}:/bin/sh\n"
        users = directory / "passwd"
        users.write_text(Path("/etc/passwd").read_text() + line)
        setup = f"mount --bind {users} /etc/passwd"
        if disk_mb:
            what = f"size={disk_mb}m,mode=755,uid={uid},gid={uid}"
            setup += f"\nmount -t tmpfs -o {what} tmpfs {home}"
        with running_sshd(directory, setup=setup, user=GUEST, uid=uid) as server:
            yield server


def complaint_of_guest_namespaces() -> str:
    """Return why the guest cannot use bubblewrap, "" if it can."""
    words = ["setpriv", "--reuid=65534", "--clear-groups", "unshare", "-Urm", "true"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return f"users without rights may make no namespaces here: {done.stderr}"
