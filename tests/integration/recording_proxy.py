"""A proxy before a real llama.cpp server that keeps what the server said it sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web


@dataclass(slots=True, frozen=True)
class Sampled:
    """One reply of the server: the ids it sampled and their log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class RecordingProxy:
    """Passes everything on, byte by byte.

    Attributes:
        url: Address of the proxy.
        sampled: What the server sampled after each prompt (its ids).
    """

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self.url = ""
        self.sampled: dict[tuple[int, ...], list[Sampled]] = defaultdict(list)
        self._upstream = upstream
        self._session = session

    async def handle(self, request: web.Request) -> web.Response:
        asked = await request.read()
        headers = {"Content-Type": request.content_type}
        url = f"{self._upstream}{request.path}"
        async with self._session.request(
            request.method, url, data=asked, headers=headers
        ) as answer:
            body = await answer.read()
            if request.path == "/completion" and answer.status == 200:
                self._record(orjson.loads(asked), orjson.loads(body))
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    def _record(self, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        # A question for one log-probability forces a token: that is no sample.
        if "tokens" in asked["response_fields"]:
            entries = answer["completion_probabilities"]
            assert [entry["id"] for entry in entries] == answer["tokens"]
            self.sampled[tuple(asked["prompt"])].append(
                Sampled(tuple(answer["tokens"]), tuple(entry["logprob"] for entry in entries))
            )


@asynccontextmanager
async def recording_proxy(upstream: str) -> AsyncIterator[RecordingProxy]:
    """Stand before ``upstream`` on a free port of 127.0.0.1."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        proxy = RecordingProxy(upstream, session)
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()
