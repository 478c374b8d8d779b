"""The connections to one host: as many as its sessions need, opened when they do.

sshd gives a connection at most MaxSessions sessions (10 unless configured); the next is refused.
So each connection is a *line* with places. A session takes a place on the line with most room;
where there is none a new line is opened. A line that refuses a session has no more places than it
has sessions; one that breaks is forgotten, and the next session opens another.
"""

from __future__ import annotations

import copy
import getpass
import logging
from pathlib import Path
from typing import Any

import anyio
import asyncssh
from anyio.abc import TaskGroup

from hermes_rl.backends.ssh_errors import PresentedKey, connect_error, session_error
from hermes_rl.backends.ssh_options import SSHAddress, SSHOptions
from hermes_rl.backends.ssh_stream import SSHStream
from hermes_rl.errors import BackendUnavailable, ConfigError, HermesRLError

__all__ = ["HostConnections"]

logger = logging.getLogger(__name__)

CONNECTS = 4
"""Connections being opened at once; sshd begins to drop at 10 (MaxStartups)."""
KEEPALIVES = 3
"""Unanswered in a row before a connection is given up."""
CLOSE_LIMIT_S = 3.0
OPEN_TRIES = 3
"""Times that a session is asked for anew, after refusals and broken connections."""
_NOBODY = b"#"
"""No known hosts; asyncssh takes an empty text for its default file."""
PAUSE_S = 0.2
"""After a refusal by a line without sessions: one that has just ended may still count there."""


class _Client(asyncssh.SSHClient):
    """Sees the key of a host that is not trusted."""

    def __init__(self) -> None:
        self.shown: tuple[str, int, asyncssh.SSHKey] | None = None
        self.lost = anyio.Event()

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.shown = (host, port, key)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class _Line:
    """One connection and its places."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.opened = anyio.Event()
        self.error: HermesRLError | None = None
        self.connection: asyncssh.SSHClientConnection | None = None
        self.client = _Client()

    @property
    def room(self) -> int:
        return self.places - self.taken

    @property
    def is_dead(self) -> bool:
        return self.error is not None or self.client.lost.is_set()

    def give_back(self) -> None:
        self.taken -= 1


class HostConnections:
    """Opens sessions on one host.

    Args:
        address: The host.
        options: Of the backend.
        tasks: Where connecting goes on though a caller is cancelled.
    """

    def __init__(self, address: SSHAddress, options: SSHOptions, tasks: TaskGroup) -> None:
        self.address = address
        self._options = options
        self._tasks = tasks
        self._lines: list[_Line] = []
        self._connects = anyio.CapacityLimiter(CONNECTS)
        self._is_closed = False

    @property
    def count(self) -> int:
        """Living connections."""
        return sum(not line.is_dead for line in self._lines)

    async def open(self, command: str, *, mark: bytes) -> SSHStream:
        """Start a command in a session of its own.

        Args:
            command: For the login shell.
            mark: See :class:`~hermes_rl.backends.ssh_stream.SSHStream`.

        Raises:
            BackendUnavailable: The host cannot be reached, or gives no session.
            ConfigError: It is not trusted, or refuses the login.
        """
        refusal: Exception | None = None
        for _ in range(OPEN_TRIES):
            line = self._line_with_room()
            line.taken += 1
            stream = SSHStream(mark, line.give_back)
            try:
                await line.opened.wait()
                if line.error is not None:
                    raise copy.copy(line.error)
                await self._start(line, command, stream)
            except (asyncssh.ChannelOpenError, ConnectionError, asyncssh.DisconnectError) as error:
                await stream.aclose()
                refusal = error
                if not line.is_dead:
                    await self._refused(line)
            except BaseException:
                # Cancelled while the host was asked: what it may have started ends with this.
                await stream.aclose()
                raise
            else:
                return stream
        raise session_error(refusal or OSError("no session"), host=self.address)

    async def _start(self, line: _Line, command: str, stream: SSHStream) -> None:
        assert line.connection is not None
        await line.connection.create_session(lambda: stream, command, encoding=None)

    async def _refused(self, line: _Line) -> None:
        if line.taken:
            line.places = min(line.places, line.taken)
        else:
            await anyio.sleep(PAUSE_S)

    def _line_with_room(self) -> _Line:
        if self._is_closed:
            raise BackendUnavailable(f"{self.address}: the backend is closed.", backend="ssh")
        self._lines = [line for line in self._lines if not line.is_dead]
        roomy = max(self._lines, key=lambda line: line.room, default=None)
        if roomy is not None and roomy.room > 0:
            return roomy
        line = _Line(self._options.sessions_per_connection)
        self._lines.append(line)
        self._tasks.start_soon(self._connect, line)
        return line

    async def _connect(self, line: _Line) -> None:
        try:
            async with self._connects:
                line.connection = await self._connected(line.client)
        except HermesRLError as error:
            line.error = error
        except Exception as error:  # the boundary: one host must not end the backend
            logger.exception("connecting to %s failed", self.address)
            line.error = BackendUnavailable(f"{self.address}: {error!r}", backend="ssh")
        finally:
            if line.connection is None and line.error is None:
                line.error = BackendUnavailable(f"{self.address}: given up.", backend="ssh")
            line.opened.set()

    async def _connected(self, client: _Client) -> asyncssh.SSHClientConnection:
        for key in self._options.keys:
            if not key.expanduser().is_file():
                raise ConfigError(f"The key {key} for {self.address} does not exist.")
        try:
            with anyio.fail_after(self._options.connect_timeout_s):
                return await asyncssh.connect(
                    self.address.host,
                    client_factory=lambda: client,
                    keepalive_interval=self._options.keepalive_s,
                    keepalive_count_max=KEEPALIVES,
                    agent_forwarding=False,
                    **self._settings(),
                )
        except (OSError, asyncssh.Error, ValueError) as error:
            raise connect_error(
                error,
                host=self.address,
                user=self.address.user or getpass.getuser(),
                keys=[str(key) for key in self._options.keys],
                shown=self._shown(client),
            ) from error

    def _settings(self) -> dict[str, Any]:
        """Return what is left to ssh's configuration where we were told nothing."""
        options, address = self._options, self.address
        settings: dict[str, Any] = {}
        if address.port is not None:
            settings["port"] = address.port
        if address.user is not None:
            settings["username"] = address.user
        if options.keys:
            settings["client_keys"] = [str(key.expanduser()) for key in options.keys]
        if options.config is not None:
            settings["config"] = [str(path.expanduser()) for path in options.config] or None
        if not options.check_host_key:
            settings["known_hosts"] = None
        elif options.known_hosts is not None:
            place = options.known_hosts.expanduser()
            settings["known_hosts"] = str(place) if place.exists() else _NOBODY
        return settings

    def _shown(self, client: _Client) -> PresentedKey | None:
        if client.shown is None:
            return None
        host, port, key = client.shown
        place = self._options.known_hosts or Path("~/.ssh/known_hosts")
        return PresentedKey(
            host=host,
            port=port,
            algorithm=key.get_algorithm(),
            fingerprint=key.get_fingerprint(),
            has_other=_is_listed(place.expanduser(), host, port),
            place=place,
        )

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
            for line in self._lines:
                await line.opened.wait()
                if line.connection is not None:
                    line.connection.close()
            for line in self._lines:
                if line.connection is not None:
                    await line.connection.wait_closed()
        for line in self._lines:
            if line.connection is not None:
                line.connection.abort()


def _is_listed(place: Path, host: str, port: int) -> bool:
    """Tell whether a file of known hosts has a key for a host."""
    try:
        known = asyncssh.read_known_hosts(str(place))
        return bool(known.match(host, "", None if port == 22 else port)[0])
    except (OSError, ValueError):
        return False
