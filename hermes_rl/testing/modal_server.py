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

import argparse
import base64
import contextlib
import functools
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
import orjson
from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from hermes_rl.testing.loopback_boxes import BoxRequest, open_box
from hermes_rl.testing.loopback_cloud import CloudLog, Faults, Lives, LoopbackSandbox
from hermes_rl.testing.modal_execs import Exec
from hermes_rl.testing.modal_images import ImageBench

__all__ = ["ModalServer", "refusal"]

TOKEN_LIFE_S = 3600
LISTEN_BACKLOG = 128
_END_STATUS = {
    "timeout": api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT,
    "idle": api_pb2.GenericResult.GENERIC_STATUS_IDLE_TIMEOUT,
    "deleted": api_pb2.GenericResult.GENERIC_STATUS_TERMINATED,
    "exited": api_pb2.GenericResult.GENERIC_STATUS_FAILURE,
}
_STDOUT = router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT


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


class ModalServer:
    """The server. Enter it with ``async with``.

    Args:
        port: 0 = any that is free.
        in_containers: Each sandbox is a Docker container and images are real; else processes.
        tokens: The pair that is accepted.
        log: Where events go.
        create_s: How long a creation takes at least.
        minute_s: Length of a minute in the sandboxes' timers.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        in_containers: bool = False,
        tokens: tuple[str, str] = ("ak-loopback", "as-loopback"),
        log: CloudLog | None = None,
        create_s: float = 0.0,
        minute_s: float = 60.0,
    ) -> None:
        self.port = port
        self.in_containers = in_containers
        self.tokens = tokens
        self.log = log or CloudLog()
        self.faults: Faults[GRPCError] = Faults()
        self.create_s = create_s
        self.minute_s = minute_s
        self.lives: Lives[_Sandbox] = Lives(self.log, in_use=_in_use)
        self.images = ImageBench(in_containers=in_containers)
        self._apps: dict[str, str] = {}
        self._stack = AsyncExitStack()

    @property
    def builds(self) -> int:
        """Images that Docker was asked to build."""
        return self.images.builds

    @property
    def url(self) -> str:
        """For MODAL_SERVER_URL."""
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """Point the SDK of this process here; yields the variables, for other processes."""
        wanted = {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": self.tokens[0],
            "MODAL_TOKEN_SECRET": self.tokens[1],
            "MODAL_CONFIG_PATH": os.devnull,
        }
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield wanted
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    async def __aenter__(self) -> Self:
        """Listen."""
        await self._stack.enter_async_context(self._serving())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every sandbox and stop."""
        await self._stack.aclose()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        services = [
            _service(self, ModalClientBase, _Control(self)),
            _service(self, TaskCommandRouterBase, _Router(self)),
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


class _Control:
    """The control plane."""

    def __init__(self, server: ModalServer) -> None:
        self._server = server

    async def ClientHello(self, request: Any, metadata: Any) -> Any:
        self._authenticate(metadata)
        return api_pb2.ClientHelloResponse()

    def _authenticate(self, metadata: Any) -> None:
        pair = (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret"))
        if pair != self._server.tokens:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")

    async def AuthTokenGet(self, request: Any, metadata: Any) -> Any:
        self._authenticate(metadata)
        return api_pb2.AuthTokenGetResponse(token=self._server.token())

    async def AppGetOrCreate(self, request: Any, metadata: Any) -> Any:
        self._authenticate(metadata)
        return api_pb2.AppGetOrCreateResponse(app_id=self._server.app(request.app_name))

    async def EnvironmentGetOrCreate(self, request: Any, metadata: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-loopback",
            metadata=api_pb2.EnvironmentMetadata(name="main", settings=settings),
        )

    # Images

    async def MountPutFile(self, request: Any, metadata: Any) -> Any:
        exists = self._server.images.put_file(request.sha256_hex, request.data)
        return api_pb2.MountPutFileResponse(exists=exists)

    async def MountBatchedCheckExistence(self, request: Any, metadata: Any) -> Any:
        missing = self._server.images.missing(request.sha256_hex_hashes)
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountGetOrCreate(self, request: Any, metadata: Any) -> Any:
        mount_id = self._server.images.mount(request.files)
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id)

    async def ImageGetOrCreate(self, request: Any, metadata: Any) -> Any:
        image_id, is_built = self._server.images.order(request.image)
        status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
        result = api_pb2.GenericResult(status=status) if is_built else None
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=result)

    async def ImageJoinStreaming(self, request: Any, stream: Any) -> None:
        error = await self._server.images.build(request.image_id)
        statuses = api_pb2.GenericResult
        status = statuses.GENERIC_STATUS_FAILURE if error else statuses.GENERIC_STATUS_SUCCESS
        result = api_pb2.GenericResult(status=status, exception=error)
        await stream.send_message(api_pb2.ImageJoinStreamingResponse(result=result, eof=True))

    # Sandboxes

    async def SandboxCreateV2(self, request: Any, metadata: Any) -> Any:
        env: dict[str, str] = {}
        for source in request.secret_sources:
            env.update(source.env.contents if source.HasField("env") else {})
        sandbox = await self._server.create(request.definition, request.tags, env, v1=False)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=sandbox.id, task_id=sandbox.task_id, command_router_access=self._access()
        )

    def _access(self) -> Any:
        return api_pb2.CommandRouterAccess(url=self._server.url, jwt=self._server.token())

    async def SandboxCreate(self, request: Any, metadata: Any) -> Any:
        sandbox = await self._server.create(request.definition, request.tags, {}, v1=True)
        return api_pb2.SandboxCreateResponse(sandbox_id=sandbox.id)

    async def SandboxGetTaskId(self, request: Any, metadata: Any) -> Any:
        sandbox = self._server.sandbox(request.sandbox_id)
        return api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task_id)

    SandboxGetTaskIdV2 = SandboxGetTaskId

    async def TaskGetCommandRouterAccess(self, request: Any, metadata: Any) -> Any:
        self._server.task(request.task_id)
        access = self._access()
        return api_pb2.TaskGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def SandboxGetCommandRouterAccess(self, request: Any, metadata: Any) -> Any:
        access = self._access()
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def SandboxWait(self, request: Any, metadata: Any) -> Any:
        sandbox = self._server.sandbox(request.sandbox_id)
        if not sandbox.end and not await sandbox.box.is_up():
            await self._server.end(sandbox, "exited")
        with anyio.move_on_after(request.timeout):
            await sandbox.ended.wait()
        if not sandbox.end:
            return api_pb2.SandboxWaitResponse()
        unknown = api_pb2.GenericResult.GENERIC_STATUS_INTERNAL_FAILURE
        result = api_pb2.GenericResult(status=_END_STATUS.get(sandbox.end, unknown))
        return api_pb2.SandboxWaitResponse(result=result)

    SandboxWaitV2 = SandboxWait

    async def SandboxTerminate(self, request: Any, metadata: Any) -> Any:
        await self._server.end(self._server.sandbox(request.sandbox_id), "deleted")
        return api_pb2.SandboxTerminateResponse()

    SandboxTerminateV2 = SandboxTerminate

    async def SandboxTagsGet(self, request: Any, metadata: Any) -> Any:
        labels = self._server.sandbox(request.sandbox_id).labels
        return api_pb2.SandboxTagsGetResponse(tags=_tags(labels))

    SandboxTagsGetV2 = SandboxTagsGet

    async def SandboxList(self, request: Any, metadata: Any) -> Any:
        wanted = {(tag.tag_name, tag.tag_value) for tag in request.tags}
        infos = [
            api_pb2.SandboxInfo(id=each.id, created_at=self._server.made_at_s(each))
            for each in self._server.lives.alive
            if wanted <= set(each.labels.items())
        ]
        is_first_page = not request.before_timestamp
        return api_pb2.SandboxListResponse(sandboxes=infos if is_first_page else [])

    SandboxListV2 = SandboxList


def _tags(labels: dict[str, str]) -> list[Any]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=text) for name, text in labels.items()]


class _Router:
    """The command router, which runs beside a sandbox."""

    def __init__(self, server: ModalServer) -> None:
        self._server = server

    async def TaskExecStart(self, request: Any, metadata: Any) -> Any:
        sandbox = self._server.task(request.task_id)
        if request.exec_id not in sandbox.execs:
            env: dict[str, str] = {}
            for source in request.secret_sources:
                env.update(source.env.contents if source.HasField("env") else {})
            try:
                process = await sandbox.box.exec(
                    list(request.command_args), cwd=request.workdir or None, env=env
                )
            except OSError as error:
                raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
            sandbox.execs[request.exec_id] = started = Exec(process)
            started.start(self._server.tasks)
        return router_pb2.TaskExecStartResponse()

    def _exec(self, request: Any) -> Exec:
        for sandbox in self._server.lives.sandboxes.values():
            if sandbox.task_id == request.task_id and request.exec_id in sandbox.execs:
                return sandbox.execs[request.exec_id]
        raise GRPCError(Status.NOT_FOUND, f"Exec {request.exec_id} not found")

    async def TaskExecStdioRead(self, request: Any, stream: Any) -> None:
        each = self._exec(request)
        output = each.stdout if request.file_descriptor == _STDOUT else each.stderr
        async with contextlib.aclosing(output.pieces(request.offset)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=piece))

    async def TaskExecStdinWrite(self, request: Any, metadata: Any) -> Any:
        self._server.task(request.task_id)
        try:
            await self._exec(request).write(request.offset, request.data, eof=request.eof)
        except OSError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecPoll(self, request: Any, metadata: Any) -> Any:
        return self._status(self._exec(request), router_pb2.TaskExecPollResponse)

    async def TaskExecWait(self, request: Any, metadata: Any) -> Any:
        each = self._exec(request)
        await each.ended.wait()
        return self._status(each, router_pb2.TaskExecWaitResponse)

    @staticmethod
    def _status(each: Exec, reply: Any) -> Any:
        if each.status is None:
            return reply()
        code, number = each.status
        return reply(signal=number) if number else reply(code=code)


async def _serve_until_told(server: ModalServer) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with server:
            os.write(1, f"{server.url}\n".encode())
            async for _ in signals:
                return


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="A Modal on this machine, for tests.")
    parser.add_argument("--port", type=int, default=0, help="0 = any that is free")
    parser.add_argument("--log", help="file that gets the events, a line of JSON each")
    parser.add_argument("--containers", action="store_true", help="sandboxes are containers")
    arguments = parser.parse_args()
    with Path(arguments.log or os.devnull).open("ab") as file:
        log = CloudLog(file)
        server = ModalServer(port=arguments.port, in_containers=arguments.containers, log=log)
        anyio.run(_serve_until_told, server)


if __name__ == "__main__":
    main()
