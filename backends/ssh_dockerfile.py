"""Dockerfiles that need no build: files and settings put on top of an image that a host has.

Followed are FROM (once), WORKDIR, ENV, and COPY and ADD of files of the context; what only says
how a container would be run (CMD, ENTRYPOINT, EXPOSE, LABEL, VOLUME, STOPSIGNAL) is read over.
Everything else (RUN, USER, ARG, variables, stages, wildcards, archives, downloads, and paths
relative to a WORKDIR that the image sets) is refused by name: nothing is built here.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread
import orjson

from hermes_rl.backends.docker_context import BuildContext
from hermes_rl.errors import Unsupported
from hermes_rl.sandbox import Capability, Sandbox, SandboxSpec

__all__ = ["ImageRecipe", "recipe_of"]

_SILENT = {"CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME"}
_ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst")


@dataclass(slots=True, frozen=True, kw_only=True)
class ImageRecipe:
    """What a sandbox's files are made of.

    Attributes:
        image: Its name.
        workdir: Working directory; "" = the image's.
        env: Environment that it sets.
        directories: To be made.
        copies: Place in the sandbox -> local file.
    """

    image: str
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()
    copies: Mapping[str, Path] = field(default_factory=dict)

    def completed(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec with the image's environment below its own."""
        return replace(spec, env={**self.env, **spec.env})

    async def apply(self, sandbox: Sandbox, *, threads: anyio.CapacityLimiter) -> None:
        """Put the files into a sandbox that was started from the image.

        Raises:
            FileError: One cannot be put there.
        """
        if not self.directories and not self.copies:
            return
        with tempfile.TemporaryDirectory(prefix="hermes-image-") as stage:
            await anyio.to_thread.run_sync(self._lay_out, Path(stage), limiter=threads)
            await sandbox.upload(Path(stage), "/")

    def _lay_out(self, stage: Path) -> None:
        stage.chmod(0o755)
        for directory in self.directories:
            (stage / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for place, source in self.copies.items():
            target = stage / place.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


async def recipe_of(
    spec: SandboxSpec, *, threads: anyio.CapacityLimiter, backend: str = "ssh"
) -> ImageRecipe | None:
    """Return what the spec's files are made of; None if it wants no image.

    Args:
        spec: The sandbox.
        threads: For reading files.
        backend: Whose sandbox it is, for errors.

    Raises:
        Unsupported: Its Dockerfile needs a build; names the line.
        ImageBuildFailed: There is no Dockerfile.
    """
    if spec.dockerfile_dir is None:
        return None if spec.image is None else ImageRecipe(image=spec.image)
    directory = spec.dockerfile_dir
    reader = _Reader(directory, backend)
    return await anyio.to_thread.run_sync(reader.read, limiter=threads)


class _Reader:
    """Follows one Dockerfile. Blocks."""

    def __init__(self, directory: Path, backend: str) -> None:
        self._directory = directory
        self._backend = backend
        self._image = ""
        self._workdir = ""
        self._env: dict[str, str] = {}
        self._directories: list[str] = []
        self._copies: dict[str, Path] = {}

    def read(self) -> ImageRecipe:
        self._context = BuildContext.scan(self._directory)
        for line in _instructions((self._context.root / "Dockerfile").read_text("utf-8")):
            word, _, rest = line.partition(" ")
            self._follow(word.upper(), rest.strip(), line)
        if not self._image:
            raise self._refusal("it has no FROM")
        return ImageRecipe(
            image=self._image,
            workdir=self._workdir,
            env=self._env,
            directories=self._directories,
            copies=self._copies,
        )

    def _follow(self, word: str, rest: str, line: str) -> None:
        known: Mapping[str, Callable[[str, str], None]] = {
            "FROM": self._from,
            "WORKDIR": self._enter,
            "ENV": self._set,
            "COPY": self._copy,
            "ADD": self._add,
        }
        if word in _SILENT:
            return
        if word not in known or "$" in rest or rest.startswith("--"):
            raise self._refusal(line)
        try:
            known[word](rest, line)
        except (ValueError, IndexError) as error:  # quotes that do not end, no words at all
            raise self._refusal(f"{line} ({error})") from error

    def _refusal(self, line: str) -> Unsupported:
        return Unsupported(
            f"The {self._backend} backend cannot build {self._context.root / 'Dockerfile'}: "
            f"{line[:200]}",
            capability=Capability.DOCKERFILE.value,
            backend=self._backend,
        )

    def _from(self, rest: str, line: str) -> None:
        if self._image or len(rest.split()) != 1:
            raise self._refusal(line)
        self._image = rest

    def _enter(self, rest: str, line: str) -> None:
        self._workdir = self._absolute(rest.strip("\"'"), line)
        self._directories.append(self._workdir)

    def _set(self, rest: str, line: str) -> None:
        words = shlex.split(rest)
        if "=" not in words[0]:
            words = [f"{words[0]}={rest.partition(' ')[2].strip()}"]
        for each in words:
            name, _, value = each.partition("=")
            self._env[name] = value

    def _add(self, rest: str, line: str) -> None:
        *sources, _ = self._words(rest)
        if any("://" in each or each.endswith(_ARCHIVES) for each in sources):
            raise self._refusal(line)
        self._copy(rest, line)

    def _words(self, rest: str) -> list[str]:
        return list(map(str, orjson.loads(rest))) if rest.startswith("[") else shlex.split(rest)

    def _copy(self, rest: str, line: str) -> None:
        *sources, target = self._words(rest)
        if not sources:
            raise self._refusal(line)
        place = self._absolute(target, line)
        is_directory = len(sources) > 1 or target.endswith(("/", ".")) or place in self._directories
        for source in sources:
            files = self._files(PurePosixPath(source.lstrip("/")))
            if not files or any(mark in source for mark in "*?["):
                raise self._refusal(line)
            for name, path in files.items():
                end = name or (PurePosixPath(source).name if is_directory else "")
                self._copies[str(PurePosixPath(place, end))] = path

    def _files(self, source: PurePosixPath) -> dict[str, Path]:
        """Return the files of the context at ``source``: path below it -> local file."""
        found = {}
        for name in map(PurePosixPath, self._context.names):
            path = self._context.root / name
            if name.is_relative_to(source) and not (path.is_dir() and not path.is_symlink()):
                below = str(name.relative_to(source))
                found["" if below == "." else below] = path
        return found

    def _absolute(self, path: str, line: str) -> str:
        if not self._workdir and not path.startswith("/"):
            raise self._refusal(f"{line} (relative to the image's own WORKDIR)")
        parts: list[str] = []
        for part in PurePosixPath("/", self._workdir, path).parts[1:]:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return "/" + "/".join(parts)


def _instructions(text: str) -> Iterator[str]:
    """Yield the instructions, each on one line."""
    pending = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        yield pending
        pending = ""
    if pending.strip():
        yield pending.strip()
