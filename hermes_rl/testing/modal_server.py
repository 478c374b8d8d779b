"""A Modal that runs on this machine, for the real Modal SDK.

It serves the SDK's own gRPC services, control plane and command router, on one loopback port, and
runs commands for real (:mod:`hermes_rl.testing.loopback_boxes`)::

    async with ModalServer() as server:
        with server.environment():          # MODAL_SERVER_URL and two tokens
            async with open_backend("modal", settings) as backend:
                ...
        server.log.most_within("SandboxCreateV2", 1.0)

As a process: ``python -m hermes_rl.testing.modal_server --port 0 --log FILE`` prints its URL.
What it does not serve, it answers with UNIMPLEMENTED, as the protocol has it. Needs the extra
``modal``.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Unpack

import anyio
import orjson
from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from hermes_rl.testing.loopback_boxes import BoxRequest, open_box
from hermes_rl.testing.loopback_cloud import LoopbackCloud, LoopbackSandbox, ServerOptions
from hermes_rl.testing.loopback_process import run_server
from hermes_rl.testing.modal_control import ControlPlane
from hermes_rl.testing.modal_execs import Exec
from hermes_rl.testing.modal_images import ImageBench
from hermes_rl.testing.modal_router import CommandRouter

__all__ = ["ModalServer", "refusal"]

TOKEN_LIFE_S = 3600
LISTEN_BACKLOG = 128


def refusal(status: Status, message: str, *, retry_after_s: float | None = None) -> GRPCError:
    """Return what a call answers when it fails; with a time to wait, as Modal throttles."""
    if retry_after_s is None:
        return GRPCError(status, message)
    return GRPCError(status, message, [api_pb2.RPCRetryPolicy(retry_after_secs=retry_after_s)])


@dataclass(slots=True)
class _Sandbox(LoopbackSandbox):
    definition: Any = None
    execs: dict[str, Exec] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        return f"ta-{self.id.partition('-')[2]}V"


def _in_use(sandbox: _Sandbox) -> bool:
    return any(each.status is None for each in sandbox.execs.values())


class ModalServer(LoopbackCloud[_Sandbox, GRPCError]):
    """The server. Enter it with ``async with``.

    Args:
        tokens: The pair that is accepted.
        options: See :class:`~hermes_rl.testing.loopback_cloud.LoopbackCloud`.
    """

    def __init__(
        self,
        *,
        tokens: tuple[str, str] = ("ak-loopback", "as-loopback"),
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(in_use=_in_use, **options)
        self.tokens = tokens
        self.images = ImageBench(in_containers=self.in_containers)
        self._apps: dict[str, str] = {}

    @property
    def builds(self) -> int:
        """Images that Docker was asked to build."""
        return self.images.builds

    @property
    def url(self) -> str:
        """For MODAL_SERVER_URL."""
        return f"http://127.0.0.1:{self.port}"

    def variables(self) -> dict[str, str]:
        """Return the address and the tokens; no configuration file of the user's is read."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": self.tokens[0],
            "MODAL_TOKEN_SECRET": self.tokens[1],
            "MODAL_CONFIG_PATH": os.devnull,
        }

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        services = [
            _service(self, ModalClientBase, ControlPlane(self)),
            _service(self, TaskCommandRouterBase, CommandRouter(self)),
        ]
        async with anyio.create_task_group() as self.tasks, self.lives.open():
            server = Server(services, status_details_codec=custom_detail_codec)
            listener = _listener(self.port)
            self.port = listener.getsockname()[1]
            await server.start(sock=listener)
            try:
                yield
            finally:
                server.close()
                await server.wait_closed()
                with anyio.CancelScope(shield=True):
                    for sandbox in self.lives.alive:
                        await self.end(sandbox, "server closed")
                    await self.images.close()
                self.tasks.cancel_scope.cancel()

    async def end(self, sandbox: _Sandbox, why: str) -> None:
        """End a sandbox and its execs."""
        await self.lives.end(sandbox, why)
        for each in sandbox.execs.values():
            await each.kill()

    # What the services share

    def app(self, name: str) -> str:
        """Return the app's id."""
        return self._apps.setdefault(name, f"ap-{uuid.uuid4().hex[:16]}")

    def sandbox(self, id: str) -> _Sandbox:
        """Return a sandbox.

        Raises:
            GRPCError: There is none.
        """
        found = self.lives.sandboxes.get(id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {id} not found")
        return found

    def task(self, id: str) -> _Sandbox:
        """Return the running sandbox of a task.

        Raises:
            GRPCError: It has ended, or there is none.
        """
        for sandbox in self.lives.sandboxes.values():
            if sandbox.task_id == id and not sandbox.end:
                return sandbox
        raise GRPCError(Status.NOT_FOUND, f"Task {id} is not running")

    async def create(
        self, definition: Any, tags: Any, env: dict[str, str], *, v1: bool
    ) -> _Sandbox:
        """Start a sandbox.

        Raises:
            GRPCError: It cannot be.
        """
        await anyio.sleep(self.create_s)
        if any(each.definition.name == definition.name for each in self.lives.alive):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox name {definition.name} is taken")
        resources = definition.resources
        blocked = api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
        request = BoxRequest(
            image=self.images.tag(definition.image_id),
            command=list(definition.entrypoint_args),
            env=env,
            workdir=definition.workdir or None,
            user="root",
            cpus=resources.milli_cpu_max / 1000 if resources.milli_cpu_max else None,
            memory_mb=resources.memory_mb_max or None,
            blocks_network=definition.network_access.network_access_type == blocked,
            label="modal",
        )
        try:
            box = await open_box(request, in_containers=self.in_containers)
        except OSError as error:
            raise GRPCError(Status.INTERNAL, str(error)) from error
        now_s = time.time()
        sandbox = _Sandbox(
            id=f"sb-{uuid.uuid4().hex[: 22 if v1 else 26]}",
            box=box,
            labels={tag.tag_name: tag.tag_value for tag in tags},
            expires_at_s=now_s + definition.timeout_secs * self.minute_s / 60,
            idle_s=definition.idle_timeout_secs * self.minute_s / 60 or None,
            used_at_s=now_s,
            definition=definition,
        )
        self.lives.add(sandbox)
        return sandbox

    def made_at_s(self, sandbox: _Sandbox) -> float:
        """Return when a sandbox was made, Unix time."""
        life_s = float(sandbox.definition.timeout_secs) * self.minute_s / 60
        return sandbox.expires_at_s - life_s

    def token(self) -> str:
        """Return a token as the SDK reads them: it looks at the time of its end only."""
        claims = orjson.dumps({"exp": int(time.time()) + TOKEN_LIFE_S})
        return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


def _listener(port: int) -> socket.socket:
    """Listen on this machine; asyncio sends without delay only where the protocol is told."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(LISTEN_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _service(server: ModalServer, base: type, methods: object) -> Any:
    """Return an instance of a gRPC service whose calls are ``methods``' where it has them."""
    names = [name for name in vars(base) if re.match("[A-Z]", name)]
    calls = {name: functools.partialmethod(_serve, server, methods, name) for name in names}
    return type(base.__name__, (base,), calls)()


async def _serve(_: object, server: ModalServer, methods: object, name: str, stream: Any) -> None:
    """One call: logged, refused if a fault waits for it, else made."""
    request = await stream.recv_message()
    method: Callable[..., Awaitable[Any]] | None = getattr(methods, name, None)
    server.log.add(name, getattr(request, "sandbox_id", ""))
    if (fault := await server.faults.meet(name)) is not None:
        raise fault
    if method is None:
        raise GRPCError(Status.UNIMPLEMENTED, f"the loopback server does not serve {name}")
    if name in _STREAMING:
        await method(request, stream)
    else:
        await stream.send_message(await method(request, stream.metadata))


_STREAMING = {"TaskExecStdioRead", "ImageJoinStreaming"}


def main() -> None:
    """Serve until SIGTERM."""
    run_server(ModalServer, description="A Modal on this machine, for tests.")


if __name__ == "__main__":
    main()
