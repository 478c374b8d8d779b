"""One HTTP endpoint of a model server: connections, bodies, bounded replies.

Requests go through the transport of ``httpx-aiohttp``. httpx's own pool searches all its
connections on every request, which costs tens of milliseconds of CPU with 512 in flight
(``tests/perf/test_model_perf.py`` measures both). ``httpx.AsyncClient`` is left out as well: its
cookies, redirects and auth flows are not wanted here and cost a third of a request's CPU time.
Tests and users replace the network by giving :func:`open_endpoint` another
``httpx.AsyncBaseTransport``.

There is no limit on connections here: the limiter of :mod:`hermes_rl.model.limiter` is the only
one. Secrets are sent in headers only and taken out of every error text.
"""

from __future__ import annotations

import ipaddress
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import aiohttp
import anyio
import anyio.to_thread
import httpx
from httpx_aiohttp import AiohttpTransport
from pydantic import SecretStr

from hermes_rl.errors import ModelError, ModelProtocolError, ModelTransient
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.model.address import check_base_url

__all__ = ["MAX_REPLY_BYTES", "Endpoint", "Reply", "open_endpoint"]

MAX_REPLY_BYTES = 8 * 2**20
"""Decoded size of one reply. A 100,000-token completion is about 0.5 MB; decoding 8 MB of JSON
is about what the event loop may spend at once."""
CONNECT_TIMEOUT_S = 30.0
"""Seconds for name resolution, TCP and TLS together."""
MIN_SECRET_CHARS = 8
KEEPALIVE_S = 15.0
"""Seconds an idle connection is kept: agents come back after a tool call."""
PART_BYTES = 512 * 1024
"""Larger bodies are written in parts, between which the event loop gets a turn."""

_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "hermes_rl",
}
_tls_threads = LoopLimiter(1)
"""Loading the system's certificates takes tens of milliseconds; it happens off the loop."""


@dataclass(slots=True, frozen=True)
class Reply:
    """A complete HTTP answer.

    Attributes:
        status: HTTP status.
        headers: Case-insensitive headers.
        body: Decoded body, at most :data:`MAX_REPLY_BYTES`.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _LargeBody(httpx.AsyncByteStream):
    """A large body, restartable and of known size, handed out in parts."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        part: list[bytes] = []
        size = 0
        for piece in self._pieces:
            for start in range(0, len(piece), PART_BYTES):
                part.append(piece[start : start + PART_BYTES])
                size += len(part[-1])
                if size >= PART_BYTES:
                    yield b"".join(part)
                    part, size = [], 0
        yield b"".join(part)


class Endpoint:
    """A server's base address with its credentials and connections."""

    def __init__(
        self,
        base_url: str,
        transport: httpx.AsyncBaseTransport,
        *,
        api_key: SecretStr | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._transport = transport
        self._secret = api_key.get_secret_value() if api_key else ""
        self._urls: dict[str, httpx.URL] = {}
        # httpx.Headers hides the key in its repr, so that no traceback with variables shows it.
        self._headers = httpx.Headers({**_HEADERS, **(headers or {})})
        if self._secret:
            self._headers["Authorization"] = f"Bearer {self._secret}"

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r})"

    def redact(self, text: str) -> str:
        """Return an error text without this endpoint's key, should a server have echoed it."""
        return self._redact_bytes(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def _redact_bytes(self, body: bytes) -> bytes:
        # Placeholders such as "x" or "EMPTY" are no secrets, and replacing them garbles the text.
        if len(self._secret) < MIN_SECRET_CHARS:
            return body
        return body.replace(self._secret.encode(), b"[key]")

    async def post(self, path: str, body: bytes | Sequence[bytes], *, timeout_s: float) -> Reply:
        """Send a JSON body.

        Args:
            path: Below the base address, e.g. ``/chat/completions``.
            body: Encoded JSON, whole or in pieces that follow each other.
            timeout_s: Seconds for everything, from connecting to the last byte.

        Raises:
            ModelTransient: No complete answer: connection, time-out, cut off.
            ModelProtocolError: The answer is larger than :data:`MAX_REPLY_BYTES`.
        """
        url = self._url(path)
        pieces = [body] if isinstance(body, bytes) else body
        size = sum(map(len, pieces))
        if size <= PART_BYTES:
            content = b"".join(pieces)
            request = httpx.Request("POST", url, headers=self._headers, content=content)
        else:
            request = httpx.Request("POST", url, headers=self._headers, stream=_LargeBody(pieces))
            request.headers["Content-Length"] = str(size)
        request.headers["Content-Type"] = "application/json"
        return await self._send(request, timeout_s)

    async def get(self, path: str, *, timeout_s: float) -> Reply:
        """Fetch ``path``; raises like :meth:`post`."""
        request = httpx.Request("GET", self._url(path), headers=self._headers)
        return await self._send(request, timeout_s)

    def _url(self, path: str) -> httpx.URL:
        if path not in self._urls:
            self._urls[path] = httpx.URL(self.base_url + path)
        return self._urls[path]

    async def _send(self, request: httpx.Request, timeout_s: float) -> Reply:
        request.extensions = {"timeout": {"connect": CONNECT_TIMEOUT_S, "pool": CONNECT_TIMEOUT_S}}
        failure: ModelError
        try:
            with anyio.fail_after(timeout_s):
                return await self._exchange(request)
        except TimeoutError:
            failure = ModelTransient(f"{self.base_url} did not answer within {timeout_s:g} s.")
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            what = self.redact(f"{type(error).__name__}: {error}".rstrip(": "))
            failure = ModelTransient(f"The connection to {self.base_url} failed: {what}")
        # Raised out here: it must not keep the request alive, whose headers hold the key.
        raise failure

    async def _exchange(self, request: httpx.Request) -> Reply:
        response = await self._transport.handle_async_request(request)
        response.request = request
        try:
            body = await _read_bounded(response)
        finally:
            # Not shielded: the transport gives the connection up before its first wait.
            await response.aclose()
        if response.status_code >= 300:
            body = self._redact_bytes(body)
        return Reply(response.status_code, response.headers, body)


async def _read_bounded(response: httpx.Response) -> bytes:
    pieces: list[bytes] = []
    size = 0
    # httpx's own iteration costs a tenth of a request and is needed only to decompress.
    is_plain = "content-encoding" not in response.headers
    source = response.stream if is_plain else response.aiter_bytes()
    async for piece in cast(AsyncIterable[bytes], source):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_REPLY_BYTES:
            raise ModelProtocolError(
                f"The server's answer is larger than {MAX_REPLY_BYTES} bytes.",
                status=response.status_code,
            )
    return b"".join(pieces)


def _proxy_for(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy that the environment names for this address, never one for loopback."""
    if _is_loopback(url.host) or urllib.request.proxy_bypass(url.host):
        return None
    address = urllib.request.getproxies().get(url.scheme)
    return httpx.Proxy(address) if address else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _open_transport(url: httpx.URL) -> AiohttpTransport:
    verify = url.scheme == "https"
    tls = await anyio.to_thread.run_sync(
        lambda: httpx.create_ssl_context(verify=verify), limiter=_tls_threads
    )

    def open_session() -> aiohttp.ClientSession:
        # Built here because the transport reads "no limit" as aiohttp's default of 100, and so that
        # a load balancer's cookie cannot pin every rollout to one replica.
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=KEEPALIVE_S)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    return AiohttpTransport(verify=tls, client=open_session, proxy=_proxy_for(url))


@asynccontextmanager
async def open_endpoint(
    base_url: str,
    *,
    api_key: SecretStr | None = None,
    headers: Mapping[str, str] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Endpoint]:
    """Open connections to a server; they close with the context.

    Args:
        base_url: Address that paths are appended to, e.g. ``http://127.0.0.1:8000/v1``.
        api_key: Sent as a bearer token.
        headers: Sent with every request.
        transport: Replaces the network; the caller's to close.

    Raises:
        ConfigError: ``base_url`` is no usable address.
    """
    url = check_base_url(base_url)
    if transport is not None:
        yield Endpoint(base_url, transport, api_key=api_key, headers=headers)
        return
    opened = await _open_transport(url)
    try:
        yield Endpoint(base_url, opened, api_key=api_key, headers=headers)
    finally:
        with anyio.CancelScope(shield=True):
            await opened.aclose()
