"""Sandboxes of the loopback clouds: commands run for real, in containers or beside us.

A :class:`ContainerBox` is a Docker container, so images, users, limits and networks are real. A
:class:`ProcessBox` is a directory and processes on this machine, where Docker is absent or a
hundred sandboxes are wanted: it isolates nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import Process

from hermes_rl.loop_limiter import LoopLimiter

__all__ = [
    "Box",
    "BoxRequest",
    "ContainerBox",
    "ProcessBox",
    "build_image",
    "has_image",
    "open_box",
    "remove_image",
]

MARKER = "HERMES_LOOPBACK_BOX"
"""Environment variable by which a box's processes are found."""
LABEL = "hermes.loopback"
"""Label of the containers; its value is the server's."""
_files = LoopLimiter(4)


@dataclass(slots=True, frozen=True, kw_only=True)
class BoxRequest:
    """What a cloud was asked for.

    Attributes:
        image: Docker image; not used by a process.
        command: Main process; the box ends with it.
        env: Of every command.
        workdir: Where commands start; None = the image's, or a fresh home.
        user: Who runs them, in a container; None = the image's.
        cpus: Cores; None = no limit.
        memory_mb: None = no limit.
        blocks_network: Loopback only.
        label: Names the server, on containers.
        mounts: Directory here -> where a container sees it, read-only.
    """

    image: str = ""
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    blocks_network: bool = False
    label: str = ""
    mounts: Mapping[Path, str] = field(default_factory=dict)


class Box(ABC):
    """One sandbox."""

    def __init__(self, request: BoxRequest) -> None:
        self.request = request
        self.id = uuid.uuid4().hex[:16]

    @abstractmethod
    async def start(self) -> None:
        """Bring it up.

        Raises:
            OSError: It does not start; says why.
        """

    @abstractmethod
    def argv(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command on this machine that runs ``command`` in the box."""

    @abstractmethod
    def spawn_options(self, cwd: str | None, env: Mapping[str, str]) -> dict[str, object]:
        """Return what a process with :meth:`argv` needs besides."""

    @abstractmethod
    async def is_up(self) -> bool:
        """Whether its main process runs."""

    @abstractmethod
    async def destroy(self) -> None:
        """Kill everything in it and remove what it had. Idempotent."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command with three pipes."""
        return await anyio.open_process(
            self.argv(command, cwd=cwd, env=env),
            start_new_session=True,
            **self.spawn_options(cwd, env or {}),  # type: ignore[arg-type]
        )


class ContainerBox(Box):
    """A Docker container, by the command line client."""

    @property
    def _name(self) -> str:
        return f"hermes-loopback-{self.id}"

    async def start(self) -> None:
        """Run the container."""
        request = self.request
        options = ["--rm", "--name", self._name, "--label", f"{LABEL}={request.label}"]
        options += [f"--env={name}={value}" for name, value in request.env.items()]
        if request.memory_mb is not None:
            limit = f"{request.memory_mb}m"
            options += ["--memory", limit, "--memory-swap", limit]
        if request.cpus is not None:
            options += ["--cpus", str(min(request.cpus, os.cpu_count() or 1))]
        if request.workdir is not None:
            options += ["--workdir", request.workdir]
        if request.user is not None:
            options += ["--user", request.user]
        options += [f"--volume={here}:{there}:ro" for here, there in request.mounts.items()]
        options += ["--network", "none" if request.blocks_network else "bridge"]
        await _docker("run", "--detach", *options, request.image, *request.command)

    def argv(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the client's exec."""
        options = ["--interactive", *(("--workdir", cwd) if cwd else ())]
        options += [f"--env={name}={value}" for name, value in (env or {}).items()]
        return ["docker", "exec", *options, self._name, *command]

    def spawn_options(self, cwd: str | None, env: Mapping[str, str]) -> dict[str, object]:
        """Nothing: the client passes all on."""
        return {}

    async def is_up(self) -> bool:
        """Ask the daemon."""
        try:
            state = await _docker("inspect", "--format", "{{.State.Running}}", self._name)
        except OSError:
            return False
        return state.strip() == "true"

    async def destroy(self) -> None:
        """Remove the container."""
        with suppress(OSError):
            await _docker("rm", "--force", "--volumes", self._name)


class ProcessBox(Box):
    """Processes on this machine, in a home of their own.

    It has no main process: it is up until it is destroyed.
    """

    def __init__(self, request: BoxRequest) -> None:
        super().__init__(request)
        self._home = Path(tempfile.gettempdir(), f"hermes-loopback-{self.id}")

    async def start(self) -> None:
        """Make the home."""
        await anyio.Path(self._home, "tmp").mkdir(parents=True)

    def argv(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command as it is."""
        return list(command)

    def spawn_options(self, cwd: str | None, env: Mapping[str, str]) -> dict[str, object]:
        """Return its directory and environment."""
        place = cwd or self.request.workdir
        if place and not os.path.isdir(place):
            place = None
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self._home),
            "TMPDIR": str(self._home / "tmp"),
            **self.request.env,
            **env,
            MARKER: self.id,
        }
        return {"cwd": place or str(self._home), "env": environment}

    async def is_up(self) -> bool:
        """Whether its home is there."""
        return await anyio.Path(self._home).is_dir()

    async def destroy(self) -> None:
        """Kill its processes, found by their environment, and remove the home."""
        await anyio.to_thread.run_sync(self._clean, limiter=_files)

    def _clean(self) -> None:
        for _ in range(50):
            if not _kill_marked(f"{MARKER}={self.id}".encode()):
                break
        shutil.rmtree(self._home, ignore_errors=True)


def _kill_marked(marker: bytes) -> int:
    """Kill every process with this entry in its environment; return how many there were."""
    killed = 0
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with suppress(OSError):
            entries = Path("/proc", name, "environ").read_bytes().split(b"\0")
            if marker in entries:
                os.kill(int(name), signal.SIGKILL)
                killed += 1
    return killed


async def open_box(request: BoxRequest, *, in_containers: bool) -> Box:
    """Return a running box.

    Raises:
        OSError: It does not start; says why.
    """
    box: Box = ContainerBox(request) if in_containers else ProcessBox(request)
    try:
        # A client that is killed may yet have started a container, which then nobody removes.
        with anyio.CancelScope(shield=True):
            await box.start()
        await anyio.lowlevel.checkpoint()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await box.destroy()
        raise
    return box


async def build_image(tag: str, dockerfile: str, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Build a Docker image.

    Args:
        tag: Its name.
        dockerfile: Text.
        files: The context: relative path -> content and permissions.

    Raises:
        OSError: It cannot be built; the builder's output.
    """
    with tempfile.TemporaryDirectory(prefix="hermes-loopback-build-") as context:
        await anyio.to_thread.run_sync(_lay_out, Path(context), dockerfile, files, limiter=_files)
        words = ("build", "--force-rm", "--tag", tag, "--label", f"{LABEL}=image")
        await _docker(*words, context, buildkit=False)


def _lay_out(root: Path, dockerfile: str, files: Mapping[str, tuple[bytes, int]]) -> None:
    (root / "Dockerfile").write_text(dockerfile)
    for name, (content, mode) in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


async def has_image(name: str) -> bool:
    """Whether Docker has an image of this name; a registry is never asked."""
    try:
        await _docker("image", "inspect", name)
    except OSError:
        return False
    return True


async def remove_image(tag: str) -> None:
    """Remove a name of an image; the image goes with its last one."""
    with suppress(OSError):
        await _docker("rmi", "--no-prune", tag)


async def _docker(*arguments: str, buildkit: bool = True) -> str:
    """Run the client.

    Raises:
        OSError: It failed; with what it printed.
    """
    env = dict(os.environ) if buildkit else {**os.environ, "DOCKER_BUILDKIT": "0"}
    done = await anyio.run_process(
        ["docker", *arguments], check=False, env=env, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        raise OSError(text.strip()[-4000:] or f"docker {arguments[0]} failed")
    return text
