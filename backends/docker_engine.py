"""The calls to the container engine, through aiodocker.

aiodocker has no public way to stream an archive out or to list a container's changes. Its private
names that are needed for that, ``Docker._query`` and ``Docker._query_json``, are used here only,
are pinned by the version range of the extra ``docker``, and have a test each.

Every call raises :class:`~hermes_rl.backends.docker_errors.EngineFailure` and, unless it streams,
has a deadline. The streams are async generators without a cancel scope: leave them through
:func:`contextlib.aclosing`.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
import orjson
from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream
from yarl import URL

from hermes_rl.backends.admission import StartTurns
from hermes_rl.backends.docker_archive import ArchiveStat
from hermes_rl.backends.docker_attach import AttachTransport, converse
from hermes_rl.backends.docker_changes import read_changes
from hermes_rl.backends.docker_connection import open_client, registry_auth, registry_config
from hermes_rl.backends.docker_errors import TIMED_OUT, UNREACHABLE, EngineFailure
from hermes_rl.sandbox import Change

__all__ = ["DockerEngine"]

CALL_TIMEOUT_S = 60.0
"""For calls that should take milliseconds; a daemon starting 2 x cores at once needs seconds."""
CHANGES_TIMEOUT_S = 120.0
"""The daemon walks through all files that the container has written."""
START_POLL_S = 0.1
"""Between two looks at whether a command has started."""
COMMANDS_STARTING = 8
"""Commands of the engine's own that start at once, unless someone knows better."""
FREEZE_TRIES = 10
FREEZE_INTERVAL_S = 0.2
MAX_LINE_BYTES = 4 << 20
"""Largest line of a progress or event stream."""

_TAR = {"Content-Type": "application/x-tar"}


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what aiodocker and aiohttp raise into EngineFailure."""
    try:
        yield
    except DockerError as error:
        raise EngineFailure(error.status, str(error.message)) from error
    except TimeoutError as error:
        raise EngineFailure(TIMED_OUT, str(error) or "no answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineFailure(UNREACHABLE, str(error) or type(error).__name__) from error


@contextmanager
def _call(timeout_s: float) -> Iterator[None]:
    """Bound one call and translate its failures."""
    with _failures():
        try:
            with anyio.fail_after(timeout_s):
                yield
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from error


class DockerEngine:
    """A connection to one daemon. Enter it with ``async with``."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.starts = StartTurns(COMMANDS_STARTING)
        """For those who run commands."""

    async def __aenter__(self) -> Self:
        """Connect and check that the daemon answers."""
        self._docker = open_client(self.host)
        try:
            with _call(10.0):
                await self._docker.version()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        with anyio.CancelScope(shield=True):
            await self._docker.close()
            await self._docker.connector.close()

    async def json(
        self,
        path: str,
        method: str = "GET",
        *,
        params: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:
        """Make one call and return its parsed answer."""
        with _call(timeout_s):
            body = None if data is None else orjson.dumps(data)
            return await self._docker._query_json(path, method, params=params, data=body)

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container and return its id."""
        params = {"name": name}
        answer = await self.json("containers/create", "POST", params=params, data=config)
        return str(answer["Id"])

    async def start(self, container: str) -> None:
        """Start a created container."""
        await self.json(f"containers/{container}/start", "POST")

    async def inspect(self, container: str) -> dict[str, Any]:
        """Return everything the engine knows about a container."""
        answer: dict[str, Any] = await self.json(f"containers/{container}/json")
        return answer

    async def remove(self, container: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Kill and remove a container with its anonymous volumes, in whatever state it is.

        Returns when it is gone; one that is gone already, or going, is success.
        """
        with _call(timeout_s):
            while await self._remove_again(container):  # noqa: ASYNC110 - the daemon tells no one
                await anyio.sleep(0.02)

    async def _remove_again(self, container: str) -> bool:
        """Ask for removal; True if another removal is still in progress."""
        try:
            await self.json(f"containers/{container}", "DELETE", params={"force": "1", "v": "1"})
        except EngineFailure as failure:
            if failure.status == 409 and "already in progress" in failure.message:
                return True
            if failure.status != 404:
                raise
        return False

    async def pause(self, container: str) -> None:
        """Freeze all processes of a container.

        The runtime gives up where they do not all stop at once (seen with a busy machine's cgroups
        of the first version) and lets them go on; another try succeeds.
        """
        for tries_left in reversed(range(FREEZE_TRIES)):
            try:
                await self.json(f"containers/{container}/pause", "POST")
            except EngineFailure as failure:
                if not tries_left or "unable to freeze" not in failure.message:
                    raise
                await anyio.sleep(FREEZE_INTERVAL_S)
            else:
                return

    async def unpause(self, container: str) -> None:
        """Let a paused container go on."""
        await self.json(f"containers/{container}/unpause", "POST")

    async def containers(self, label: str) -> list[dict[str, Any]]:
        """List containers in every state that carry a label (``name`` or ``name=value``)."""
        filters = orjson.dumps({"label": [label]}).decode()
        params = {"all": "1", "filters": filters}
        answer: list[dict[str, Any]] = await self.json("containers/json", params=params)
        return answer

    async def changes(self, container: str, *, without: str = "") -> list[Change]:
        """List paths that differ from the image; the path ``without`` is left out."""
        with _call(CHANGES_TIMEOUT_S):
            async with self._response(f"containers/{container}/changes") as answer:
                return await read_changes(answer.content.iter_any(), without=without)

    async def attach(self, container: str) -> AttachTransport:
        """Attach to a created container's main process; start it only after this returns."""
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}

        async def setup() -> tuple[URL, bytes | None, bool]:
            return URL(f"containers/{container}/attach").with_query(query), None, False

        transport = AttachTransport(Stream(self._docker, setup))
        with _call(CALL_TIMEOUT_S):
            await transport.open()
        return transport

    async def run(
        self,
        container: str,
        argv: Sequence[str],
        sink: Callable[[int, bytes], None],
        *,
        user: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = CALL_TIMEOUT_S,
        on_start: Callable[[], None] = lambda: None,
    ) -> int:
        """Run a command by the engine itself; its exit code comes from the engine.

        Its input stays open after ``stdin`` until it ends, or until this call is cancelled or past
        ``timeout_s``. The engine cannot end a command: it must end by itself when its input does.

        Args:
            container: A running container.
            argv: Argument vector.
            sink: Called with the file descriptor and each piece of output.
            user: Name or uid; empty = the container's.
            workdir: Must exist; empty = the container's.
            env: Added to the container's.
            stdin: Sent to the command.
            timeout_s: Wall clock for all of it.
            on_start: Called when it runs, unless it ends at once.
        """
        body = {
            "Cmd": list(argv),
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "User": user,
            "WorkingDir": workdir,
            "Env": [f"{name}={value}" for name, value in (env or {}).items()],
        }
        with _call(timeout_s):
            answer = await self.json(f"containers/{container}/exec", "POST", data=body)
            exec_id = answer["Id"]
            await self._stream_exec(exec_id, sink, stdin, on_start)
            while True:
                state = await self.json(f"exec/{exec_id}/json")
                if state["ExitCode"] is not None and not state["Running"]:
                    return int(state["ExitCode"])
                await anyio.sleep(0.01)

    async def _stream_exec(
        self,
        exec_id: str,
        sink: Callable[[int, bytes], None],
        stdin: bytes,
        on_start: Callable[[], None],
    ) -> None:
        async def setup() -> tuple[URL, bytes | None, bool]:
            return URL(f"exec/{exec_id}/start"), b'{"Detach":false,"Tty":false}', False

        transport = AttachTransport(Stream(self._docker, setup))
        try:
            await transport.open()
            beside = partial(self._tell_of_start, exec_id, on_start)
            await converse(transport, sink, stdin, beside=beside)
        finally:
            await transport.aclose()

    async def _tell_of_start(self, exec_id: str, on_start: Callable[[], None]) -> None:
        """Wait until a command has a process, or the engine cannot be asked."""
        pid = 0
        with suppress(EngineFailure):
            while not pid:
                await anyio.sleep(START_POLL_S)
                pid = (await self.json(f"exec/{exec_id}/json"))["Pid"]
        on_start()

    @asynccontextmanager
    async def _response(
        self, path: str, method: str = "GET", **arguments: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a streamed answer; whatever of it is not read is dropped with its connection."""
        with _failures():
            async with self._docker._query(path, method, **arguments) as response:
                try:
                    yield response
                finally:
                    response.close()

    @asynccontextmanager
    async def get_archive(
        self, container: str, path: str
    ) -> AsyncIterator[tuple[ArchiveStat, AsyncIterator[bytes]]]:
        """Stream a path out of a container as tar; its stat comes first."""
        params = {"path": path}
        async with self._response(f"containers/{container}/archive", params=params) as answer:
            stat = ArchiveStat.parse(answer.headers["X-Docker-Container-Path-Stat"])
            yield stat, answer.content.iter_any()

    async def put_archive(self, container: str, path: str, tar: AsyncIterable[bytes]) -> None:
        """Stream a tar into an existing directory of a container; never below a tmpfs.

        The engine writes into the file system under the mount and reports success.
        """
        async with self._response(
            f"containers/{container}/archive",
            "PUT",
            params={"path": path},
            data=tar,
            headers=_TAR,
        ):
            pass

    def pull(self, image: str) -> AsyncGenerator[dict[str, Any], None]:
        """Pull an image; yields the engine's progress messages."""
        params = {"fromImage": image}
        if "@" not in image and ":" not in image.rpartition("/")[2]:
            params["tag"] = "latest"
        return self._progress("images/create", params, headers=registry_auth(image))

    def build(
        self,
        tar: AsyncIterable[bytes],
        *,
        tag: str,
        labels: Mapping[str, str],
        buildkit: bool = False,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Build an image from a context; yields the engine's progress messages."""
        params = {
            "t": tag,
            "rm": "1",
            "forcerm": "1",
            "labels": orjson.dumps(labels).decode(),
            "version": "2" if buildkit else "1",
        }
        return self._progress("build", params, data=tar, headers=_TAR | registry_config())

    async def _progress(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        data: AsyncIterable[bytes] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the messages of a stream that the engine ends; an error in it is raised."""
        async with self._response(
            path, "POST", params=params, data=data, headers=headers
        ) as answer:
            async for message in _json_lines(answer.content):
                if "error" in message or "errorDetail" in message:
                    detail = message.get("errorDetail") or {}
                    text = detail.get("message") or message.get("error") or "unknown error"
                    raise EngineFailure(0, str(text))
                yield message

    async def events(self, label: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the engine's events about containers with a label, as they happen."""
        wanted = {"type": ["container"], "label": [label], "event": ["oom", "die", "kill"]}
        params = {"filters": orjson.dumps(wanted).decode()}
        async with self._response("events", params=params) as answer:
            async for message in _json_lines(answer.content):
                yield message


async def _json_lines(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield one message per line, whatever its length up to :data:`MAX_LINE_BYTES`."""
    pending = b""
    async for chunk in stream.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield _message(line)
        if len(pending) > MAX_LINE_BYTES:
            raise EngineFailure(0, f"a message of the engine exceeds {MAX_LINE_BYTES} bytes")
    if pending.strip():
        yield _message(pending)


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise EngineFailure(0, f"the engine sent what is no JSON: {error}") from error
    return message if isinstance(message, dict) else {}
