"""A model server on loopback that answers, and fails, as told.

It speaks ``/v1/chat/completions`` and ``/v1/models`` over real HTTP, so that clients, agents and
plug-ins can be tested against everything a server does wrong::

    script = answer_in_turn([refuse(429, retry_after=2), call_tool("terminal", {"command": "ls"})])
    async with serve_model(script) as server:
        config = ServerConfig(base_url=server.base_url, model_name="m")
        async with open_openai(config) as model:
            ...
        assert len(server.requests) == 2

A script is a function from a request to an :class:`Answer`; :func:`answer_in_turn` and
:func:`always` make scripts. Answers: :func:`say`, :func:`call_tool`, :func:`completion`,
:func:`refuse`, :func:`send` (any bytes), :func:`reset`, :func:`cut_off`, :func:`hang`,
:func:`slow`.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import orjson
from aiohttp import web

from hermes_rl.types import JSONObject

__all__ = [
    "Answer",
    "ModelServer",
    "Script",
    "SeenRequest",
    "always",
    "answer_in_turn",
    "call_tool",
    "completion",
    "cut_off",
    "hang",
    "refuse",
    "reset",
    "say",
    "send",
    "serve_model",
    "slow",
]

KEPT_REQUESTS = 10_000
"""Requests that a server remembers; older ones are forgotten."""
_MAX_BODY_BYTES = 256 * 2**20
_SHUTDOWN_S = 0.05
"""Seconds for answers under way when the server closes; hanging ones are the point."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing sends a TCP reset."""


@dataclass(slots=True, frozen=True)
class SeenRequest:
    """A request as the server received it.

    Attributes:
        number: 0-based, in order of arrival.
        headers: Case-insensitive.
        raw: The body's bytes.
    """

    number: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> JSONObject:
        """The decoded body."""
        decoded: JSONObject = orjson.loads(self.raw)
        return decoded

    @property
    def messages(self) -> list[JSONObject]:
        """The messages in the body."""
        messages: list[JSONObject] = self.body["messages"]
        return messages


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Answers one request; made by the functions of this module."""
Script = Callable[[SeenRequest], Answer]
"""Chooses the answer to a request."""


def answer_in_turn(answers: Sequence[Answer], *, then: Answer | None = None) -> Script:
    """Answer requests by order of arrival; after the last with ``then``, by default the last."""

    def choose(request: SeenRequest) -> Answer:
        if request.number < len(answers):
            return answers[request.number]
        return then or answers[-1]

    return choose


def always(answer: Answer) -> Script:
    """Give every request the same answer."""
    return lambda _: answer


def completion(
    message: Mapping[str, Any],
    *,
    finish_reason: str | None = "stop",
    usage: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Answer:
    """Answer with one assistant message.

    Args:
        message: The message; ``role`` is added.
        finish_reason: Of the choice.
        usage: Token counts; None = 10 prompt and 5 completion tokens, {} = none at all.
        fields: Further fields of the answer.
    """
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": finish_reason,
    }
    counted = {"prompt_tokens": 10, "completion_tokens": 5} if usage is None else dict(usage)
    body = {"id": "c", "object": "chat.completion", "choices": [choice], **fields}
    return send(orjson.dumps(body | ({"usage": counted} if counted else {})))


def say(text: str, **fields: Any) -> Answer:
    """Answer with text; ``fields`` as for :func:`completion`."""
    return completion({"content": text}, **fields)


def call_tool(
    name: str, arguments: Mapping[str, Any] | str, *, call_id: str = "call_1", **fields: Any
) -> Answer:
    """Answer with one tool call.

    Args:
        name: Tool name.
        arguments: Arguments, or their text as it is (malformed on purpose).
        call_id: Id of the call.
        fields: As for :func:`completion`.
    """
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return completion(
        {"content": None, "tool_calls": [call]}, **{"finish_reason": "tool_calls", **fields}
    )


def refuse(
    status: int,
    message: str = "refused by the script",
    *,
    retry_after: float | str | None = None,
    **error: Any,
) -> Answer:
    """Answer with an error in OpenAI's shape.

    Args:
        status: HTTP status.
        message: Error message.
        retry_after: Value of the ``Retry-After`` header, seconds or an HTTP date.
        error: Further fields of the error, e.g. ``code``, ``type``, ``param``.
    """
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = orjson.dumps({"error": {"message": message, **error}})
    return send(body, status=status, headers=headers)


def send(
    body: bytes,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Answer with exactly these bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body, status=status, content_type=content_type, headers=dict(headers or {})
        )

    return answer


def reset() -> Answer:
    """Break the connection with a TCP reset instead of answering."""

    async def answer(request: web.Request) -> web.StreamResponse:
        _abort(request)
        return web.Response()

    return answer


def cut_off() -> Answer:
    """Begin a completion, then break the connection in the middle of the body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b'{"id": "c", "choices": [')
        _abort(request)
        return response

    return answer


def hang() -> Answer:
    """Never answer; the connection stays open until client or server close it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await anyio.sleep_forever()
        return web.Response()

    return answer


def slow(answer: Answer, delay_s: float) -> Answer:
    """Give ``answer`` after a delay."""

    async def later(request: web.Request) -> web.StreamResponse:
        await anyio.sleep(delay_s)
        return await answer(request)

    return later


def _abort(request: web.Request) -> None:
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class ModelServer:
    """A running server; made by :func:`serve_model`.

    Attributes:
        base_url: Address for ``ServerConfig.base_url``.
        requests: Chat requests in order of arrival, at most :data:`KEPT_REQUESTS`.
        in_flight: Chat requests being answered.
        peak_in_flight: The most there ever were.
    """

    def __init__(self, script: Script, models: Sequence[JSONObject]) -> None:
        self.base_url = ""
        self.requests: deque[SeenRequest] = deque(maxlen=KEPT_REQUESTS)
        self.in_flight = 0
        self.peak_in_flight = 0
        self._script = script
        self._models = list(models)
        self._numbers = itertools.count()

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._list_models)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        seen = SeenRequest(next(self._numbers), request.headers.copy(), raw)
        self.requests.append(seen)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            return await self._script(seen)(request)
        finally:
            self.in_flight -= 1

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": self._models})


@asynccontextmanager
async def serve_model(
    script: Script, *, models: Sequence[JSONObject] = (), port: int = 0
) -> AsyncIterator[ModelServer]:
    """Serve ``script`` on 127.0.0.1 until the context ends.

    Args:
        script: Chooses answers.
        models: Entries of ``/v1/models``, e.g. ``{"id": "m", "max_model_len": 4096}``.
        port: 0 = any free one.
    """
    server = ModelServer(script, models)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
        await site.start()
        bound_port = runner.addresses[0][1]
        server.base_url = f"http://127.0.0.1:{bound_port}/v1"
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
