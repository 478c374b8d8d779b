"""A Daytona that runs on this machine, for the real Daytona SDK.

It serves the REST API, the toolbox of each sandbox (terminal sessions by websocket) and the object
storage that build contexts go to, on one loopback port, and runs commands for real
(:mod:`hermes_rl.testing.loopback_boxes`)::

    async with DaytonaServer() as server:
        with server.environment():          # DAYTONA_API_URL and DAYTONA_API_KEY
            async with open_backend("daytona", settings) as backend:
                ...

As a process: ``python -m hermes_rl.testing.daytona_server --port 0 --log FILE`` prints its URL.
The socket.io notifications are not served; the SDK polls then. Needs the extra ``daytona``.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Unpack

import anyio
import orjson
from aiohttp import web

from hermes_rl.testing.daytona_storage import Storage, entrypoint_of, image_from
from hermes_rl.testing.loopback_boxes import BoxRequest, open_box, remove_image
from hermes_rl.testing.loopback_cloud import LoopbackCloud, LoopbackSandbox, ServerOptions
from hermes_rl.testing.loopback_process import run_server
from hermes_rl.testing.loopback_terminal import BRIDGE_DIR, Terminal, bridge_interpreter

__all__ = ["DaytonaServer", "Refusal"]

MAX_BODY_BYTES = 64 << 20
KEEPALIVE_S = 20.0
_EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"


@dataclass(slots=True, frozen=True)
class Refusal:
    """What a call answers when it fails."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> web.Response:
        """Return Daytona's error envelope."""
        body = {"statusCode": self.status, "message": self.message, "source": "DAYTONA_API"}
        return _json(body, status=self.status, headers=self.headers)


@dataclass(slots=True)
class _Sandbox(LoopbackSandbox):
    asked: dict[str, Any] = field(default_factory=dict)
    state: str = "started"
    error: str = ""
    terminals: dict[str, Terminal] = field(default_factory=dict)


def _json(
    body: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )


class DaytonaServer(LoopbackCloud[_Sandbox, Refusal]):
    """The server. Enter it with ``async with``.

    Args:
        key: The key that is accepted.
        options: See :class:`~hermes_rl.testing.loopback_cloud.LoopbackCloud`.
    """

    def __init__(self, *, key: str = "dtn_loopback", **options: Unpack[ServerOptions]) -> None:
        super().__init__(**options)
        self.key = key
        self.storage = Storage()
        self._images: list[str] = []

    @property
    def builds(self) -> int:
        """Images that Docker was asked to build."""
        return len(self._images)

    @property
    def url(self) -> str:
        """For DAYTONA_API_URL."""
        return f"http://127.0.0.1:{self.port}/api"

    def variables(self) -> dict[str, str]:
        """Return the address and the key."""
        return {"DAYTONA_API_URL": self.url, "DAYTONA_API_KEY": self.key}

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as self.tasks, self.lives.open():
            runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.5)
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", self.port)
                await site.start()
                self.port = runner.addresses[0][1]
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    for sandbox in self.lives.alive:
                        await self.end(sandbox, "server closed")
                    await runner.cleanup()
                    for tag in reversed(self._images):
                        await remove_image(tag)
                self.tasks.cancel_scope.cancel()

    def _application(self) -> web.Application:
        application = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[self._middleware()]
        )
        api = "/api/sandbox"
        application.add_routes(
            [
                web.post(api, self._create, name="create"),
                web.get(api, self._list, name="list"),
                web.get(api + "/{id}", self._get, name="get"),
                web.delete(api + "/{id}", self._delete, name="delete"),
                web.post(api + "/{id}/last-activity", self._touch, name="touch"),
                web.get("/api/object-storage/push-access", self._push_access, name="push-access"),
                web.get(
                    "/toolbox/{id}/process/pty/create-connect", self._terminal, name="terminal"
                ),
                web.route("*", "/storage/{tail:.*}", self.storage.serve, name="storage"),
            ]
        )
        return application

    def _middleware(self) -> Any:
        @web.middleware
        async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
            call = request.match_info.route.name or "unknown"
            self.log.add(call, request.match_info.get("id", ""))
            is_storage = call == "storage"
            if not is_storage and request.headers.get("Authorization") != f"Bearer {self.key}":
                return Refusal(401, "Invalid credentials").response()
            if (refusal := await self.faults.meet(call)) is not None:
                return refusal.response()
            response: web.StreamResponse = await handler(request)
            return response

        return middleware

    async def end(self, sandbox: _Sandbox, why: str) -> None:
        """End a sandbox and its terminals."""
        await self.lives.end(sandbox, why)
        for terminal in sandbox.terminals.values():
            terminal.kill()

    # Sandboxes

    async def _create(self, request: web.Request) -> web.Response:
        asked: dict[str, Any] = orjson.loads(await request.read())
        if any(each.asked["name"] == asked["name"] for each in self.lives.alive):
            return Refusal(409, f"Sandbox with name {asked['name']} already exists").response()
        await anyio.sleep(self.create_s)
        return _json(self._described(await self.make(asked)))

    async def make(self, asked: dict[str, Any]) -> _Sandbox:
        """Start what was asked for; one that cannot be is in the state ``build_failed``."""
        state = error = image = ""
        try:
            image = await self._image(asked)
        except OSError as failure:
            state, error = "build_failed", str(failure)
        box_request = BoxRequest(
            image=image,
            command=entrypoint_of(asked.get("buildInfo") or {}),
            env=asked.get("env") or {},
            user=asked.get("user"),
            cpus=asked.get("cpu"),
            memory_mb=1024 * asked["memory"] if asked.get("memory") else None,
            blocks_network=bool(asked.get("networkBlockAll")),
            label="daytona",
            mounts={(await bridge_interpreter()).path: BRIDGE_DIR} if self.in_containers else {},
        )
        in_containers = self.in_containers and not error
        box = await open_box(box_request, in_containers=in_containers)
        now_s = time.time()
        idle, life = asked.get("autoStopInterval"), asked.get("ttlMinutes")
        sandbox = _Sandbox(
            id=str(uuid.uuid4()),
            box=box,
            labels=dict(asked.get("labels") or {}),
            expires_at_s=now_s + life * self.minute_s if life else math.inf,
            idle_s=idle * self.minute_s if idle else None,
            used_at_s=now_s,
            asked=asked,
            state=state or "started",
            error=error,
        )
        self.lives.add(sandbox)
        return sandbox

    async def _image(self, asked: dict[str, Any]) -> str:
        if not self.in_containers:
            return ""
        tag, is_new = await image_from(asked.get("buildInfo") or {}, self.storage)
        if is_new:
            self._images.append(tag)
        return tag

    def _described(self, sandbox: _Sandbox) -> dict[str, Any]:
        asked = sandbox.asked
        return {
            "id": sandbox.id,
            "organizationId": "loopback",
            "name": asked["name"],
            "user": asked.get("user") or "daytona",
            "env": asked.get("env") or {},
            "labels": sandbox.labels,
            "public": False,
            "networkBlockAll": bool(asked.get("networkBlockAll")),
            "kvm": False,
            "target": asked.get("target") or "loopback",
            "cpu": asked.get("cpu") or 1,
            "gpu": asked.get("gpu") or 0,
            "memory": asked.get("memory") or 1,
            "disk": asked.get("disk") or 3,
            "state": sandbox.state,
            "errorReason": sandbox.error or None,
            "toolboxProxyUrl": f"http://127.0.0.1:{self.port}/toolbox",
        }

    def _found(self, request: web.Request) -> _Sandbox | None:
        key = request.match_info["id"]
        for sandbox in self.lives.alive:
            if key in (sandbox.id, sandbox.asked["name"]):
                return sandbox
        return None

    async def _list(self, request: web.Request) -> web.Response:
        wanted = orjson.loads(request.query.get("labels") or "{}")
        items = [
            self._described(each)
            for each in self.lives.alive
            if wanted.items() <= each.labels.items()
        ]
        return _json({"items": items, "nextCursor": None, "total": len(items)})

    async def _get(self, request: web.Request) -> web.Response:
        sandbox = self._found(request)
        return _json(self._described(sandbox)) if sandbox else _missing(request)

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox = self._found(request)
        if sandbox is None:
            return _missing(request)
        await self.end(sandbox, "deleted")
        sandbox.state = "destroyed"
        return _json(self._described(sandbox))

    async def _touch(self, request: web.Request) -> web.Response:
        sandbox = self._found(request)
        if sandbox is None:
            return _missing(request)
        sandbox.used_at_s = time.time()
        return web.Response(status=201)

    async def _push_access(self, request: web.Request) -> web.Response:
        return _json(
            {
                "accessKey": "loopback",
                "secret": "loopback",
                "sessionToken": "loopback",
                "storageUrl": f"http://127.0.0.1:{self.port}/storage",
                "organizationId": "loopback",
                "bucket": "contexts",
                "region": "loopback",
            }
        )

    # The toolbox

    async def _terminal(self, request: web.Request) -> web.StreamResponse:
        sandbox = self._found(request)
        if sandbox is None or sandbox.state != "started":
            return _missing(request)
        terminal = await Terminal.open(sandbox.box)
        sandbox.terminals[request.query["id"]] = terminal
        self.tasks.start_soon(terminal.run)
        websocket = web.WebSocketResponse(protocols=(_EXIT_CONTROL,), heartbeat=KEEPALIVE_S)
        await websocket.prepare(request)
        await websocket.send_json({"type": "control", "status": "connected"})
        terminal.watch(websocket.send_bytes)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_report_end, websocket, terminal)
                async for message in websocket:
                    data = message.data
                    await terminal.write(data.encode() if isinstance(data, str) else data)
                tasks.cancel_scope.cancel()
        finally:
            terminal.watch(None)
        return websocket


async def _report_end(websocket: web.WebSocketResponse, terminal: Terminal) -> None:
    """Tell the client how the shell ended, in a message and again in the close frame."""
    await terminal.ended.wait()
    code = terminal.exit_code
    with contextlib.suppress(OSError):
        await websocket.send_json({"type": "control", "status": "exited", "exitCode": code})
        await websocket.close(message=orjson.dumps({"exitCode": code}))


def _missing(request: web.Request) -> web.Response:
    return Refusal(404, f"Sandbox with ID or name {request.match_info['id']} not found").response()


def main() -> None:
    """Serve until SIGTERM."""
    run_server(DaytonaServer, description="A Daytona on this machine, for tests.")


if __name__ == "__main__":
    main()
