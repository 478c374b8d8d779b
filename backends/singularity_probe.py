"""Finds out, by trying, how containers can be confined on this machine.

What a user may do depends on how the runtime was installed, on its configuration, on sysctls, on
/etc/subuid, on cgroups and on the file system of the temporary directory; each combination is
documented somewhere, but only trying tells. Each try runs our mounted interpreter in an image that
is nothing but a few directories, as a sandbox would be started.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.backends.local_directories import remove_tree
from hermes_rl.backends.runtime import Runtime
from hermes_rl.backends.singularity_errors import singularity_error
from hermes_rl.backends.singularity_options import SingularityOptions, UserMode
from hermes_rl.backends.singularity_program import (
    Confinement,
    Program,
    limits_for,
    no_interfaces,
    program_environment,
)
from hermes_rl.errors import BackendUnavailable, CreateError, SandboxError
from hermes_rl.sandbox import Capability

__all__ = ["Findings", "empty_image", "probe"]

TRY_TIMEOUT_S = 60.0
DIRECTORIES = ("dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var/tmp")
USER_OPTIONS = {"default": (), "fakeroot": ("--fakeroot",), "userns": ("--userns",)}
LIMITS = frozenset({Capability.CPU_LIMIT, Capability.MEMORY_LIMIT, Capability.PIDS_LIMIT})
TASK_LIMITS = frozenset({Capability.CPU_LIMIT, Capability.MEMORY_LIMIT})
_TRIAL = """
import os
open("/etc/trial", "w").close()
with open("/proc/net/dev") as devices:
    count = len(devices.readlines()) - 2
facts = [os.getuid(), os.getpid() == 1, count == 1]
try:
    os.setgroups([1234])
    os.setgid(1234)
    os.setuid(1234)
    facts.append(True)
except OSError:
    facts.append(False)
print(*map(int, facts))
"""
"""Writes to the root file system; prints the user, whether it is process 1, whether there is only
one network device, and whether it can become someone else."""


@dataclass(slots=True, frozen=True)
class Findings:
    """What this machine allows.

    Attributes:
        confinement: How to start containers.
        uid: Who we are inside.
        capabilities: Of sandboxes started so.
    """

    confinement: Confinement
    uid: int
    capabilities: frozenset[Capability]

    @property
    def keeps_limits(self) -> bool:
        """Whether containers can be limited."""
        return Capability.MEMORY_LIMIT in self.capabilities

    def capabilities_with(self, options: SingularityOptions) -> frozenset[Capability]:
        """Return what tasks may ask for, less strict where the options say so."""
        if options.task_limits == "ignore":
            return self.capabilities | TASK_LIMITS
        return self.capabilities


@dataclass(slots=True, frozen=True)
class _Facts:
    uid: int
    has_loopback_only: bool
    switches_users: bool


def probe(program: Program, runtime: Runtime, mode: UserMode) -> Findings:
    """Try until something works. Blocking; takes about a second.

    Raises:
        BackendUnavailable: Nothing does; says what each way said.
    """
    with empty_image() as image:
        return _Probe(program, runtime, image).run(mode)


@contextmanager
def empty_image() -> Iterator[Path]:
    """Make an image of a few directories; beside it are an ``overlay`` and a ``workdir``."""
    top = Path(tempfile.mkdtemp(prefix="hermes-singularity-"))
    image = top / "image"
    try:
        for path in (top / "overlay", top / "workdir", *(image / name for name in DIRECTORIES)):
            path.mkdir(parents=True)
        yield image
    finally:
        remove_tree(top)


def _modes(mode: UserMode) -> Sequence[str]:
    if mode != "auto":
        return [mode]
    return ["default", "userns"] if os.geteuid() == 0 else ["fakeroot", "default"]


class _Probe:
    def __init__(self, program: Program, runtime: Runtime, image: Path) -> None:
        self._program = program
        self._runtime = runtime
        self._image = image

    def run(self, mode: UserMode) -> Findings:
        complaints: list[SandboxError] = []
        for user, writable in itertools.product(_modes(mode), ("overlay", "tmpfs")):
            confinement = Confinement(self._program, USER_OPTIONS[user], writable)
            try:
                facts = self._try(confinement)
            except SandboxError as error:
                complaints.append(error)
                continue
            return self._findings(confinement, facts)
        told = " ".join(dict.fromkeys(map(str, complaints)))
        raise BackendUnavailable(
            f"{self._program} starts no container here. {told}", backend="singularity"
        )

    def _findings(self, confinement: Confinement, facts: _Facts) -> Findings:
        found = {
            Capability.ISOLATION,
            Capability.IMAGES,
            Capability.NETWORK_PUBLIC,
            Capability.PTY,
        }
        if facts.uid == 0:
            found.add(Capability.DOCKERFILE)  # others may not write where files are copied to
        if facts.switches_users:
            found.add(Capability.USERS)
        if self._works(confinement, interfaces=no_interfaces(self._image.with_name("net"))):
            found.add(Capability.NETWORK_NONE)
        if self._works(confinement, limits=limits_for(cpus=0.5, memory_mb=512, pids=256)):
            found |= LIMITS
        return Findings(confinement, facts.uid, frozenset(found))

    def _works(
        self,
        confinement: Confinement,
        *,
        interfaces: Path | None = None,
        limits: Sequence[str] = (),
    ) -> bool:
        try:
            facts = self._try(confinement, interfaces=interfaces, limits=limits)
        except SandboxError:
            return False
        return facts.has_loopback_only or interfaces is None

    def _try(
        self,
        confinement: Confinement,
        *,
        interfaces: Path | None = None,
        limits: Sequence[str] = (),
    ) -> _Facts:
        argv = confinement.argv(
            str(self._image),
            self._runtime.code_argv(_TRIAL),
            overlay=self._image.with_name("overlay"),
            workdir=self._image.with_name("workdir"),
            runtime=self._runtime.path,
            interfaces=interfaces,
            limits=limits,
        )
        done = _finished(argv)
        words = done.stdout.split()
        if done.returncode != 0 or len(words) != 4:
            raise singularity_error(done.stderr, otherwise=f"exit code {done.returncode}")
        uid, is_first, *others = map(int, words)
        if not is_first:
            raise CreateError("Containers have no process namespace of their own.")
        return _Facts(uid, *map(bool, others))


def _finished(argv: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=TRY_TIMEOUT_S,
            env=program_environment(),
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise singularity_error(b"", otherwise=f"no end within {TRY_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise singularity_error(str(error).encode()) from error
