"""The control plane of the loopback Modal: apps, images and the life of sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from grpclib import GRPCError, Status
from modal_proto import api_pb2

if TYPE_CHECKING:
    from hermes_rl.testing.modal_server import ModalServer

__all__ = ["ControlPlane"]

_END_STATUS = {
    "timeout": api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT,
    "idle": api_pb2.GenericResult.GENERIC_STATUS_IDLE_TIMEOUT,
    "deleted": api_pb2.GenericResult.GENERIC_STATUS_TERMINATED,
    "exited": api_pb2.GenericResult.GENERIC_STATUS_FAILURE,
}


class ControlPlane:
    """The calls that it serves, by their names; each takes the request and the call's metadata."""

    def __init__(self, server: ModalServer) -> None:
        self._server = server

    async def ClientHello(self, request: Any, metadata: Any) -> Any:
        """Let in who has the tokens."""
        self._authenticate(metadata)
        return api_pb2.ClientHelloResponse()

    def _authenticate(self, metadata: Any) -> None:
        pair = (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret"))
        if pair != self._server.tokens:
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")

    async def AuthTokenGet(self, request: Any, metadata: Any) -> Any:
        """Hand out a token."""
        self._authenticate(metadata)
        return api_pb2.AuthTokenGetResponse(token=self._server.token())

    async def AppGetOrCreate(self, request: Any, metadata: Any) -> Any:
        """Return the app's id."""
        self._authenticate(metadata)
        return api_pb2.AppGetOrCreateResponse(app_id=self._server.app(request.app_name))

    async def EnvironmentGetOrCreate(self, request: Any, metadata: Any) -> Any:
        """Name the one environment, and its image builder."""
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-loopback",
            metadata=api_pb2.EnvironmentMetadata(name="main", settings=settings),
        )

    # Images

    async def MountPutFile(self, request: Any, metadata: Any) -> Any:
        """Take a file of a build context."""
        exists = self._server.images.put_file(request.sha256_hex, request.data)
        return api_pb2.MountPutFileResponse(exists=exists)

    async def MountBatchedCheckExistence(self, request: Any, metadata: Any) -> Any:
        """Say which files are not here yet."""
        missing = self._server.images.missing(request.sha256_hex_hashes)
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountGetOrCreate(self, request: Any, metadata: Any) -> Any:
        """Make a build context of files."""
        mount_id = self._server.images.mount(request.files)
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id)

    async def ImageGetOrCreate(self, request: Any, metadata: Any) -> Any:
        """Take an order for an image; it is built when it is joined."""
        image_id, is_built = self._server.images.order(request.image)
        status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
        result = api_pb2.GenericResult(status=status) if is_built else None
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=result)

    async def ImageJoinStreaming(self, request: Any, stream: Any) -> None:
        """Build the image, and say at its end how that went."""
        error = await self._server.images.build(request.image_id)
        statuses = api_pb2.GenericResult
        status = statuses.GENERIC_STATUS_FAILURE if error else statuses.GENERIC_STATUS_SUCCESS
        result = api_pb2.GenericResult(status=status, exception=error)
        await stream.send_message(api_pb2.ImageJoinStreamingResponse(result=result, eof=True))

    # Sandboxes

    async def SandboxCreateV2(self, request: Any, metadata: Any) -> Any:
        """Start a sandbox; the answer says where its command router is."""
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
        """Start a sandbox as the older call does."""
        sandbox = await self._server.create(request.definition, request.tags, {}, v1=True)
        return api_pb2.SandboxCreateResponse(sandbox_id=sandbox.id)

    async def SandboxGetTaskId(self, request: Any, metadata: Any) -> Any:
        """Return the sandbox's task."""
        sandbox = self._server.sandbox(request.sandbox_id)
        return api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task_id)

    SandboxGetTaskIdV2 = SandboxGetTaskId

    async def TaskGetCommandRouterAccess(self, request: Any, metadata: Any) -> Any:
        """Say where the command router of a running task is."""
        self._server.task(request.task_id)
        access = self._access()
        return api_pb2.TaskGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def SandboxGetCommandRouterAccess(self, request: Any, metadata: Any) -> Any:
        """Say where the command router of a sandbox is."""
        access = self._access()
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def SandboxWait(self, request: Any, metadata: Any) -> Any:
        """Wait for the end of a sandbox; say how it ended."""
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
        """End a sandbox."""
        await self._server.end(self._server.sandbox(request.sandbox_id), "deleted")
        return api_pb2.SandboxTerminateResponse()

    SandboxTerminateV2 = SandboxTerminate

    async def SandboxTagsGet(self, request: Any, metadata: Any) -> Any:
        """Return a sandbox's tags."""
        labels = self._server.sandbox(request.sandbox_id).labels
        return api_pb2.SandboxTagsGetResponse(tags=_tags(labels))

    SandboxTagsGetV2 = SandboxTagsGet

    async def SandboxList(self, request: Any, metadata: Any) -> Any:
        """List those that run and have all the tags, on one page."""
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
