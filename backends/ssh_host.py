"""One host: what it has, and the sandboxes that are started on it."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import anyio
import orjson
from anyio.abc import TaskGroup

from hermes_rl.backends.bubblewrap import CONFIGURATION, SYSTEM, HostSystem
from hermes_rl.backends.local_session import KEPT_ENVIRONMENT
from hermes_rl.backends.outpost.guard import EXIT_REFUSED, EXIT_TROUBLE
from hermes_rl.backends.outpost.start import (
    NO_PYTHON_EXIT_CODE,
    PYTHON,
    OutpostStart,
    PythonMissing,
)
from hermes_rl.backends.ownership import DEADLINE_LABEL, DEADLINE_MARGIN_S
from hermes_rl.backends.runtime import Runtime
from hermes_rl.backends.shipment import InterpreterStock, NotTaken
from hermes_rl.backends.ssh_connection import HostConnections
from hermes_rl.backends.ssh_interpreter import HostInterpreter
from hermes_rl.backends.ssh_options import SSHAddress, SSHOptions
from hermes_rl.backends.ssh_stream import SSHStream
from hermes_rl.errors import BackendUnavailable, ConfigError

__all__ = ["HostFacts", "SSHHost"]

UNPACK_LIMIT_S = 1800.0
"""For an image of many gigabytes."""
CALL_LIMIT_S = 60.0
"""For one call of the program on the host; a loaded one starts a Python in seconds."""
OR_ELSE = (
    ", or let the backend option 'directory' name a place on a disk that has 30 MB to spare and is "
    "not mounted noexec"
)
_PACKAGE = "hermes_rl.backends.outpost"
_MODULES = (
    "outpost",
    "image_mount",
    "sandbox_lock",
    "leftovers",
    "host_survey",
    "image_archive",
    "guard",
)
"""Of the program on the host; each imports only those before it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class HostFacts:
    """What a survey found.

    Attributes:
        base: Directory of all sandboxes.
        uid: Of the login user.
        machine: Its processors' architecture.
        has_bash: Functions and aliases persist.
        environment: What commands get of the login's.
        system: What sandboxes in bubblewrap see.
        images: Image name -> directory with its files, for those that are there.
        unpacked_later: Names of those that are archives still; the directory is to be made.
        runtime: Our interpreter there, if it was brought.
    """

    base: str
    uid: int
    machine: str
    has_bash: bool
    environment: Mapping[str, str]
    system: HostSystem
    images: Mapping[str, str]
    unpacked_later: frozenset[str]
    runtime: Runtime | None = None


class SSHHost:
    """Talks to one host.

    Args:
        address: Where it is.
        options: Of the backend.
        tasks: For connections being opened.
        stock: Our interpreter, for a host without python3.
    """

    def __init__(
        self,
        address: SSHAddress,
        options: SSHOptions,
        *,
        tasks: TaskGroup,
        stock: InterpreterStock,
    ) -> None:
        self.address = address
        self.connections = HostConnections(address, options, tasks)
        self._interpreter = HostInterpreter(
            connections=self.connections, stock=stock, directory=options.directory
        )
        self._python: Sequence[str] = PYTHON
        self.places = anyio.CapacityLimiter(options.sandboxes_per_host)
        """One for each sandbox."""
        self.preparing = anyio.Lock()
        self.facts: HostFacts | None = None
        """Once it is prepared, with all that its sandboxes need."""
        self._options = options
        here = files(_PACKAGE)
        self._program = here.joinpath("bundle.py").read_bytes()
        self._parts = [str(len(_MODULES))]
        for name in _MODULES:
            self._parts += [f"{_PACKAGE}.{name}", here.joinpath(f"{name}.py").read_text()]

    async def start(self, verb: str, plan: Mapping[str, Any]) -> SSHStream:
        """Start the program on the host; its answer, or the outpost's frames, are the stream.

        Raises:
            BackendUnavailable: The host cannot be reached.
            ConfigError: It is not trusted, or refuses the login.
        """
        mark = f"<{secrets.token_hex(12)}>"
        text = orjson.dumps({**plan, "mark": mark}).decode()
        options = "\0".join([*self._parts, verb, text]).encode("utf-8", "surrogateescape")
        start = OutpostStart(options, self._program, interpreter=self._python)
        stream = await self.connections.open(start.command_line(), mark=mark.encode())
        try:
            await stream.send(start.preamble)
        except OSError:
            return stream  # it has ended already; whoever reads hears why
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def call(
        self, verb: str, plan: Mapping[str, Any], *, limit_s: float = CALL_LIMIT_S
    ) -> Any:
        """Run the program on the host to its end and return its answer.

        Raises:
            BackendUnavailable: The host cannot be reached or does not do it; says why.
            ConfigError: It is not trusted, refuses the login, or has no python3 and does not
                run ours.
        """
        try:
            return await self._called(verb, plan, limit_s=limit_s)
        except PythonMissing:
            await self._bring_python()
            return await self._called(verb, plan, limit_s=limit_s)

    async def _bring_python(self) -> None:
        try:
            runtime = await self._interpreter.bring()
        except NotTaken as error:
            text = (
                f"{self.address} has no python3 (3.8 or newer), which the supervisor of its "
                f"sandboxes needs, and ours cannot be used there: {error}. Install python3 there "
                f"(apt install python3, dnf install python3){OR_ELSE}."
            )
            if error.is_final:
                raise ConfigError(text) from error
            raise BackendUnavailable(text, backend="ssh") from error
        self._python = runtime.interpreter(str(runtime.path))

    async def _called(self, verb: str, plan: Mapping[str, Any], *, limit_s: float) -> Any:
        stream: SSHStream | None = None
        answer = bytearray()
        try:
            with anyio.fail_after(limit_s):
                stream = await self.start(verb, plan)
                while data := await stream.receive():
                    answer += data
                await stream.closed.wait()
        except TimeoutError:
            raise self.unavailable(f"did not {verb} within {limit_s:g} s") from None
        except OSError as error:
            raise self.unavailable(f"lost the connection ({error})") from error
        finally:
            if stream is not None:
                await stream.aclose()
        if not answer:
            raise self.start_error(stream)
        try:
            return orjson.loads(bytes(answer))["done"]
        except (orjson.JSONDecodeError, KeyError) as error:
            raise self.unavailable(f"gave no sense as an answer to {verb} ({error})") from error

    def unavailable(self, what: str) -> BackendUnavailable:
        """Return the error that says what the host did or did not do."""
        return BackendUnavailable(f"{self.address} {what}.", backend="ssh")

    def start_error(self, stream: SSHStream) -> BackendUnavailable | ConfigError | PythonMissing:
        """Return why the program on the host ended before it did anything."""
        if stream.exit_status == NO_PYTHON_EXIT_CODE:
            return PythonMissing(backend="ssh")
        if stream.exit_status == EXIT_REFUSED:
            return ConfigError(f"{self.address}: {stream.complaint.removeprefix('hermes: ')}.")
        if stream.exit_status == EXIT_TROUBLE:
            return self.unavailable(f"cannot: {stream.complaint.removeprefix('hermes: ')}")
        said = stream.complaint or stream.lost or stream.exit_signal or "it said nothing"
        code = "no exit code" if stream.exit_status is None else f"exit code {stream.exit_status}"
        return self.unavailable(f"does not run our program: {said} ({code})")

    async def survey(self) -> HostFacts:
        """Ask what the host has, and make its base directory.

        Raises:
            BackendUnavailable: It cannot be reached.
            ConfigError: It is not trusted, refuses the login, or is no host for sandboxes.
        """
        plan = {
            "base": self._options.directory,
            "kept": list(KEPT_ENVIRONMENT),
            "system": list(SYSTEM),
            "configuration": list(CONFIGURATION),
            "images": self._options.images,
        }
        found = await self.call("survey", plan)
        images = found["images"]
        return HostFacts(
            base=found["base"],
            uid=found["uid"],
            machine=found["machine"],
            has_bash=found["has_bash"],
            environment={"LANG": "C.UTF-8", "TERM": "dumb", **found["environment"]},
            system=HostSystem(
                program=found["bubblewrap"],
                links=found["links"],
                directories=found["directories"],
                configuration=found["configuration"],
            ),
            images={name: image["files"] for name, image in images.items()},
            unpacked_later=frozenset(
                name for name, image in images.items() if not image["is_unpacked"]
            ),
        )

    def check_bubblewrap(self, facts: HostFacts) -> None:
        """Refuse a host that cannot run our interpreter in bubblewrap, as far as is known.

        Raises:
            BackendUnavailable: Says what is missing.
        """
        if not facts.system.program:
            raise self.unavailable(
                "has no bubblewrap, which ssh_isolation: bwrap needs. Install it there (apt "
                "install bubblewrap, dnf install bubblewrap)"
            )
        if facts.machine != platform.machine():
            raise self.unavailable(
                f"is a {facts.machine} machine and this one a {platform.machine()}; sandboxes in "
                "bubblewrap run on this one's interpreter. Use ssh_isolation: none, or an engine "
                "on a machine of its kind"
            )

    async def bring_runtime(self, facts: HostFacts) -> HostFacts:
        """Upload our interpreter, which isolated sandboxes run on, if it is not there, whole.

        Raises:
            BackendUnavailable: The host cannot be reached or does not take it.
            ConfigError: It is not trusted, or refuses the login.
        """
        try:
            runtime = await self._interpreter.bring()
        except NotTaken as error:
            raise self.unavailable(
                "cannot use our interpreter, which sandboxes in bubblewrap run on: "
                f"{error}. Use ssh_isolation: none{OR_ELSE}"
            ) from error
        return replace(facts, runtime=runtime)

    async def sweep(self) -> list[str]:
        """Remove what nobody keeps any more; return the ids."""
        return [f"{self.address} {id}" for id in await self.call("sweep", await self._where())]

    async def records(self) -> list[dict[str, Any]]:
        """Return what all engines have there."""
        found: list[dict[str, Any]] = await self.call("list", await self._where())
        return found

    async def unpack(self, archive: str, files: str) -> None:
        """Make a directory of the archive of an image's files; both are on the host.

        Raises:
            BackendUnavailable: It cannot be reached, or cannot now.
            ConfigError: The archive is none.
        """
        plan = {"archive": archive, "files": files}
        await self.call("unpack", plan, limit_s=UNPACK_LIMIT_S)

    async def _where(self) -> dict[str, Any]:
        facts = self.facts or await self.survey()
        return {
            "base": facts.base,
            "deadline_label": DEADLINE_LABEL,
            "margin_s": DEADLINE_MARGIN_S,
        }

    async def remove(self, top: str) -> None:
        """Kill and remove one sandbox that does not end by itself."""
        await self.call("remove", {"top": top})
