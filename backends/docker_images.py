"""Images of sandboxes: looked up, pulled or built once however many sandboxes want them.

A Dockerfile directory is built under a tag that names the digest of its contents, so an image is
built once per content and host, not once per run. Concurrent wants share one pull or build, run by
the backend's own task group: a sandbox that stops waiting does not stop the others' build.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import StartTurns
from hermes_rl.backends.docker_buildkit import trace_output
from hermes_rl.backends.docker_context import BuildContext
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import UNREACHABLE, EngineFailure, translated
from hermes_rl.backends.shared_work import Piece, SharedWork
from hermes_rl.errors import ConfigError, CreateError, ImageBuildFailed
from hermes_rl.sandbox import SandboxSpec

__all__ = ["Image", "ImageStore"]

T = TypeVar("T")

CONTENT_LABEL = "hermes.content"
PULLS = 4
"""Pulls at once; the daemon itself fetches three layers of each."""
BUILDS = 2
"""Builds at once; each may use every core."""
OUTPUT_KEPT_BYTES = 64 << 10
"""End of a failed build's output that the error carries."""
_NEEDS_BUILDKIT = ("buildkit", "unknown flag", "unknown instruction", "parse error")


@dataclass(slots=True, frozen=True)
class Image:
    """An image that is on the daemon, and what it says of itself.

    Attributes:
        id: Content address.
        name: As asked for.
        env: Its ENV.
        user: Its USER, empty = root.
        workdir: Its WORKDIR, empty = "/".
        entrypoint: Its ENTRYPOINT followed by its CMD.
    """

    id: str
    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    entrypoint: Sequence[str] = ()

    @classmethod
    def parse(cls, name: str, answer: Mapping[str, Any]) -> Image:
        """Read what the engine says of an image."""
        config = answer.get("Config") or {}
        pairs = (entry.partition("=") for entry in config.get("Env") or ())
        return cls(
            id=answer["Id"],
            name=name,
            env={key: value for key, _, value in pairs},
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "",
            entrypoint=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        )


class ImageStore:
    """Finds, pulls and builds the images that specs ask for."""

    def __init__(self, engine: DockerEngine, tasks: TaskGroup, *, default: str | None) -> None:
        self._engine = engine
        self._default = default
        self._known: dict[str, Image] = {}
        self._digests: dict[str, str] = {}
        self._work: SharedWork[Image] = SharedWork(tasks)
        self._pulls = StartTurns(PULLS)
        self._builds = StartTurns(BUILDS)
        self._readers = anyio.CapacityLimiter(BUILDS)

    async def image_for(self, spec: SandboxSpec) -> Image:
        """Return the spec's image, making it available first.

        Raises:
            ConfigError: Neither the spec nor the backend names an image.
            CreateError: See its subclasses; not ready within ``spec.build_timeout_s``.
        """
        try:
            if spec.dockerfile_dir is not None:
                return await self._built(spec.dockerfile_dir, spec.build_timeout_s)
            return await self._named(spec.image or self._default, spec.build_timeout_s)
        except TimeoutError:
            what = spec.dockerfile_dir or spec.image or self._default
            message = f"Image {what} was not ready within {spec.build_timeout_s:g} s."
            raise CreateError(message, backend="docker") from None

    def forget(self, image: Image) -> None:
        """Look the image up again next time: the daemon no longer has it."""
        self._known.pop(image.name, None)
        self._work.forget(image.name)

    async def _named(self, name: str | None, limit_s: float) -> Image:
        if not name:
            raise ConfigError(
                "The docker backend has no image for this task. Name one: "
                "--env.terminal_image IMAGE (or the backend option 'image')."
            )
        return await self._shared(name, limit_s, lambda work: self._find_or_pull(name, work))

    async def _built(self, directory: Path, limit_s: float) -> Image:
        with anyio.fail_after(limit_s):
            context = await self._threaded(BuildContext.scan, directory)
            digest = await self._digest(context)
        tag = f"hermes-build:{digest[:24]}"
        return await self._shared(
            tag, limit_s, lambda work: self._find_or_build(tag, digest, context, work)
        )

    async def _digest(self, context: BuildContext) -> str:
        fingerprint = await self._threaded(context.fingerprint)
        if fingerprint not in self._digests:
            self._digests[fingerprint] = await self._threaded(context.digest)
        return self._digests[fingerprint]

    async def _threaded(self, work: Callable[..., T], *args: Any) -> T:
        return await anyio.to_thread.run_sync(work, *args, limiter=self._readers)

    async def _shared(
        self, name: str, limit_s: float, make: Callable[[Piece[Image]], Awaitable[Image]]
    ) -> Image:
        if name not in self._known:
            self._known[name] = await self._work.get_within(limit_s, name, make)
        return self._known[name]

    async def _find(self, name: str) -> Image | None:
        try:
            return Image.parse(name, await self._engine.json(f"images/{name}/json"))
        except EngineFailure as failure:
            if failure.status == 404:
                return None
            raise

    async def _find_or_pull(self, name: str, work: Piece[Image]) -> Image:
        with translated("image"):
            found = await self._find(name)
            if found is None:
                async with work.turn(self._pulls):
                    await self._pull(name)
                found = await self._find(name)
            if found is None:
                raise EngineFailure(404, f"No such image: {name}, although it was pulled")
            return found

    async def _pull(self, name: str) -> None:
        try:
            async with aclosing(self._engine.pull(name)) as messages:
                async for _ in messages:
                    pass
        except EngineFailure as failure:
            if failure.status >= UNREACHABLE or name in failure.message:
                raise
            # Not every registry's refusal says what was asked for.
            raise EngineFailure(failure.status, f"{name}: {failure.message}") from failure

    async def _find_or_build(
        self, tag: str, digest: str, context: BuildContext, work: Piece[Image]
    ) -> Image:
        with translated("image"):
            found = await self._find(tag)
        if found is None:
            async with work.turn(self._builds):
                await self._build(tag, digest, context)
            with translated("image"):
                found = await self._find(tag)
        if found is None:
            raise ImageBuildFailed(
                f"The build of {context.root} ended without an image.", backend="docker"
            )
        return found

    async def _build(self, tag: str, digest: str, context: BuildContext) -> None:
        """Build with the classic builder, or with BuildKit if the Dockerfile turns out to need it.

        The classic one needs no session for the credentials and output it sends; both take the
        context as the request's body.
        """
        try:
            await self._build_with(tag, digest, context, buildkit=False)
        except ImageBuildFailed as failure:
            text = str(failure).lower()
            if not any(sign in text for sign in _NEEDS_BUILDKIT):
                raise
            await self._build_with(tag, digest, context, buildkit=True)

    async def _build_with(
        self, tag: str, digest: str, context: BuildContext, *, buildkit: bool
    ) -> None:
        output = _Tail()
        stream = self._engine.build(
            self._chunks(context.tar()),
            tag=tag,
            labels={CONTENT_LABEL: digest},
            buildkit=buildkit,
        )
        try:
            async with aclosing(stream) as messages:
                async for message in messages:
                    output.add(_text(message))
        except EngineFailure as failure:
            raise _build_failed(context.root, failure, output.text()) from failure

    async def _chunks(self, tar: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Run the blocking generator in a thread, piece by piece."""
        while (chunk := await self._threaded(next, tar, None)) is not None:
            yield chunk


def _build_failed(root: Path, failure: EngineFailure, output: str) -> ImageBuildFailed:
    """Return the error of a build; the daemon's own troubles may be over at another try."""
    is_full = "no space left on device" in failure.message
    fix = ". The daemon's disk is full; free some: docker system df" if is_full else ""
    error = ImageBuildFailed(
        f"Building {root} failed: {failure}{fix}", output=output, backend="docker"
    )
    error.retryable = is_full or failure.status >= UNREACHABLE
    return error


def _text(message: Mapping[str, Any]) -> str:
    """The part of a builder's progress message that a person would read."""
    if message.get("id") == "moby.buildkit.trace":
        return trace_output(str(message.get("aux", "")))
    if "stream" in message:
        return str(message["stream"])
    if "status" in message and "progress" not in message:
        return f"{message['status']}\n"
    return ""


class _Tail:
    """The last :data:`OUTPUT_KEPT_BYTES` characters of a stream."""

    def __init__(self) -> None:
        self._parts: deque[str] = deque()
        self._size = 0

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        while self._size - len(self._parts[0]) > OUTPUT_KEPT_BYTES:
            self._size -= len(self._parts.popleft())

    def text(self) -> str:
        return "".join(self._parts)[-OUTPUT_KEPT_BYTES:]
