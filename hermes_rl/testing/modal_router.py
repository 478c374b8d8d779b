"""The command router of the loopback Modal, beside a sandbox: execs and their streams."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

from hermes_rl.testing.modal_execs import Exec

if TYPE_CHECKING:
    from hermes_rl.testing.modal_server import ModalServer

__all__ = ["CommandRouter"]

_STDOUT = router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT


class CommandRouter:
    """The calls that it serves, by their names; each takes the request and the call's metadata."""

    def __init__(self, server: ModalServer) -> None:
        self._server = server

    async def TaskExecStart(self, request: Any, metadata: Any) -> Any:
        """Run a program; a call that is made again starts none."""
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
        """Send a program's output from an offset on."""
        each = self._exec(request)
        output = each.stdout if request.file_descriptor == _STDOUT else each.stderr
        async with contextlib.aclosing(output.pieces(request.offset)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=piece))

    async def TaskExecStdinWrite(self, request: Any, metadata: Any) -> Any:
        """Write to standard input at an offset."""
        self._server.task(request.task_id)
        try:
            await self._exec(request).write(request.offset, request.data, eof=request.eof)
        except OSError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecPoll(self, request: Any, metadata: Any) -> Any:
        """Say how a program ended, if it has."""
        return self._status(self._exec(request), router_pb2.TaskExecPollResponse)

    async def TaskExecWait(self, request: Any, metadata: Any) -> Any:
        """Wait until a program has ended; say how."""
        each = self._exec(request)
        await each.ended.wait()
        return self._status(each, router_pb2.TaskExecWaitResponse)

    @staticmethod
    def _status(each: Exec, reply: Any) -> Any:
        if each.status is None:
            return reply()
        code, number = each.status
        return reply(signal=number) if number else reply(code=code)
