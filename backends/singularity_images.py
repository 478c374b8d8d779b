"""Images of containers: found, or fetched and converted once however many sandboxes want them.

What comes from elsewhere becomes a SIF file in the cache directory, named after what it was made
from, beside a small file that says what the image's configuration is. It stays there: a tag that
has moved since is not fetched again before the file is removed. Concurrent runs wait for each
other's conversion by a file lock, which the kernel drops with its holder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Self

import anyio
import anyio.to_thread
import orjson
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import StartTurns
from hermes_rl.backends.local_directories import remove_tree
from hermes_rl.backends.shared_work import Piece, SharedWork
from hermes_rl.backends.singularity_errors import singularity_error
from hermes_rl.backends.singularity_options import SingularityOptions
from hermes_rl.backends.singularity_program import Program, program_environment
from hermes_rl.errors import ConfigError, CreateError, ImageNotFound, SandboxError

__all__ = ["Image", "ImageStore", "reference_for"]

CONVERSIONS = 2
"""At once: each compresses on every core it finds and unpacks into the temporary directory."""
INSPECTIONS = 4
LOCK_POLL_S = 0.5
KEPT_BYTES = 1 << 20
"""Of what the program prints, the most that is looked at: what a SIF file holds is of any size."""
_TRANSPORT = re.compile(r"[a-z][a-z0-9-]*:")
_TRANSPORTS = ("docker", "docker-daemon", "docker-archive", "oci", "oci-archive", "oras", "library")
_OCI_FIELDS = {"WorkingDir", "Env", "Cmd", "Entrypoint", "User", "ExposedPorts", "Labels"}


@dataclass(slots=True, frozen=True)
class Image:
    """An image that containers can be started from.

    Attributes:
        path: A SIF file or a directory.
        name: As asked for.
        user: Its USER, empty = root.
        workdir: Its WORKDIR, empty = "/".
        entrypoint: Its ENTRYPOINT followed by its CMD.
    """

    path: str
    name: str
    user: str = ""
    workdir: str = ""
    entrypoint: Sequence[str] = ()

    @classmethod
    def of(cls, path: Path, name: str, config: Mapping[str, Any]) -> Self:
        """Read an OCI image configuration."""
        words = (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))
        return cls(
            path=str(path),
            name=name,
            user=str(config.get("User") or ""),
            workdir=str(config.get("WorkingDir") or ""),
            entrypoint=tuple(map(str, words)),
        )


def reference_for(name: str, *, source: str) -> str:
    """Return what the program calls an image, from what a task or a user calls it.

    Args:
        name: A path, ``docker://...`` or another of its transports, or a plain image name.
        source: Where plain names are looked up: ``docker`` or ``docker-daemon``.
    """
    if name.endswith(".sif") or name.startswith(("/", "./", "../", "~/")):
        return str(Path(name).expanduser().absolute())
    scheme = _TRANSPORT.match(name)
    # "docker:5000/x" is a registry on this machine's network; "docker://" never is.
    is_port = name.startswith("docker:") and not name.startswith("docker://")
    if scheme is not None and scheme[0][:-1] in _TRANSPORTS and not is_port:
        return name
    if source == "docker-daemon":
        has_tag = ":" in name.rpartition("/")[2] or "@" in name
        return f"docker-daemon:{name}" if has_tag else f"docker-daemon:{name}:latest"
    return f"docker://{name}"


@dataclass(slots=True, frozen=True)
class _Cached:
    """Where a converted image is, or will be."""

    directory: Path
    key: str

    @classmethod
    def of(cls, cache_dir: Path, reference: str) -> Self:
        digest = hashlib.sha256(reference.encode()).hexdigest()[:24]
        return cls(cache_dir / "singularity", digest)

    @property
    def image(self) -> Path:
        return self.directory / f"{self.key}.sif"

    @property
    def config(self) -> Path:
        """Written last: where it is, the image is whole."""
        return self.directory / f"{self.key}.json"

    @property
    def lock(self) -> Path:
        return self.directory / f"{self.key}.lock"

    @property
    def scratch(self) -> Path:
        """Where the holder of the lock works; what a killed one left there is of no use."""
        return self.directory / f".build-{self.key}"

    def fresh_scratch(self) -> Path:
        """Return an empty directory in it, unlike any that an orphan may write to. Blocking."""
        remove_tree(self.scratch)
        self.scratch.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def load(self, name: str) -> Image | None:
        """Return the image if it is there. Blocking."""
        try:
            record = orjson.loads(self.config.read_bytes())
            if self.image.is_file():
                return Image.of(self.image, name, record["config"])
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
            pass
        return None

    def save(self, image: Path, reference: str, config: Mapping[str, Any]) -> None:
        """Put a whole image there, then say so. Blocking."""
        image.rename(self.image)
        draft = self.config.with_suffix(".draft")
        draft.write_bytes(orjson.dumps({"reference": reference, "config": dict(config)}))
        draft.rename(self.config)


@dataclass(slots=True)
class ImageStore:
    """Finds and converts the images that specs ask for.

    Attributes:
        program: What converts.
        options: Of the backend.
        cache_dir: Where converted images are kept.
        tasks: Runs conversions: a sandbox that stops waiting does not stop the others'.
    """

    program: Program
    options: SingularityOptions
    cache_dir: Path
    tasks: TaskGroup
    _work: SharedWork[Image] = field(init=False)
    _conversions: StartTurns = field(init=False)
    _threads: anyio.CapacityLimiter = field(init=False)

    def __post_init__(self) -> None:
        self._work = SharedWork(self.tasks)
        self._conversions = StartTurns(CONVERSIONS)
        self._threads = anyio.CapacityLimiter(INSPECTIONS)

    async def image_for(self, wanted: str | None, *, timeout_s: float) -> Image:
        """Return an image, converted if need be; None = the backend's own.

        Raises:
            ConfigError: Neither the caller nor the backend names an image.
            CreateError: See its subclasses; not ready within ``timeout_s``.
        """
        name = wanted or self.options.image
        if not name:
            raise ConfigError(
                "The singularity backend has no image for this task. Name one: "
                "--env.terminal_image docker://IMAGE (or the backend option 'image')."
            )
        reference = reference_for(name, source=self.options.image_source)
        try:
            return await self._work.get_within(
                timeout_s, reference, lambda work: self._make(name, reference, work)
            )
        except TimeoutError:
            raise CreateError(
                f"Image {name} was not ready within {timeout_s:g} s.",
                backend="singularity",
            ) from None

    async def _make(self, name: str, reference: str, work: Piece[Image]) -> Image:
        if reference.startswith("/"):
            return await self._local(name, Path(reference))
        cached = _Cached.of(self.cache_dir, reference)
        try:
            image: Image | None = await self._in_thread(cached.load, name)
            if image is not None:
                return image
            async with work.turn(self._conversions), self._locked(cached):
                image = await self._in_thread(cached.load, name)
                return image or await self._convert(name, reference, cached)
        except OSError as error:
            raise singularity_error(str(error).encode()) from error

    async def _local(self, name: str, path: Path) -> Image:
        """Take a file or a directory as it is."""
        if await self._in_thread(path.is_dir):
            return Image.of(path, name, {})
        if not await self._in_thread(path.is_file):
            raise ImageNotFound(
                f"The image {path} does not exist on this machine. Name a .sif file or a sandbox "
                "directory that does, or docker://IMAGE to have it fetched.",
                backend="singularity",
            )
        return Image.of(path, name, await self._configuration(path))

    async def _convert(self, name: str, reference: str, cached: _Cached) -> Image:
        try:
            scratch = await self._in_thread(cached.fresh_scratch)
            target = scratch / "image.sif"
            await self._run(self.program.build(target, reference), scratch=str(scratch))
            config = await self._configuration(target)
            await self._in_thread(cached.save, target, reference, config)
        finally:
            with anyio.CancelScope(shield=True):
                await self._in_thread(remove_tree, cached.scratch)
        return Image.of(cached.image, name, config)

    @asynccontextmanager
    async def _locked(self, cached: _Cached) -> AsyncIterator[None]:
        """Hold the lock on one image against other runs on this machine."""
        cached.directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(cached.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await anyio.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(lock)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)

    async def _configuration(self, image: Path) -> Mapping[str, Any]:
        """Return the OCI configuration that a SIF file made from such an image carries."""
        try:
            listing = await self._run(self.program.list_objects(image))
        except SandboxError:
            return {}  # an older kind of file: it has none
        for number in re.findall(rb"^(\d+) .*JSON\.Generic", listing, re.M):
            with suppress(SandboxError, orjson.JSONDecodeError):
                content = await self._run(self.program.dump_object(image, int(number)))
                found = orjson.loads(content)
                if isinstance(found, dict) and found.keys() & _OCI_FIELDS:
                    return found
        return {}

    async def _run(self, argv: Sequence[str], *, scratch: str | None = None) -> bytes:
        """Run the program to its end, which is also that of all it started."""
        environment = program_environment()
        if scratch is not None:
            environment |= {"APPTAINER_TMPDIR": scratch, "SINGULARITY_TMPDIR": scratch}
        process = await anyio.open_process(
            argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        printed: dict[str, bytes] = {}
        try:
            async with anyio.create_task_group() as readers:
                readers.start_soon(_drain, process.stdout, printed, "out")
                readers.start_soon(_drain, process.stderr, printed, "err")
                try:
                    code = await process.wait()
                finally:  # what outlives it may also hold its output
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        finally:
            with anyio.CancelScope(shield=True):
                await process.wait()
                await process.aclose()
        if code != 0:
            raise singularity_error(
                printed["err"], otherwise=f"{shlex.join(argv)} ended with exit code {code}"
            )
        return printed["out"]


async def _drain(stream: Any, printed: dict[str, bytes], name: str) -> None:
    """Read to the end and keep the last of it."""
    kept = bytearray()
    async for piece in stream:
        kept += piece
        del kept[:-KEPT_BYTES]
    printed[name] = bytes(kept)
