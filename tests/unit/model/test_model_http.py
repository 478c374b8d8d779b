"""The endpoint: bodies, compression, proxies, other transports, closing."""

import gzip
import zlib

import anyio
import httpx
import pytest
from pydantic import SecretStr

from hermes_rl.errors import ModelProtocolError, ModelTransient
from hermes_rl.model.http import open_endpoint
from hermes_rl.testing.model_server import always, say, send, serve_model


async def test_a_compressed_answer_is_unpacked() -> None:
    packed = send(gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"})
    async with serve_model(always(packed)) as server, open_endpoint(server.base_url) as endpoint:
        reply = await endpoint.post("/chat/completions", b"{}", timeout_s=5)
    assert (reply.status, reply.body) == (200, b'{"a": 1}')


async def test_a_compressed_bomb_is_bounded() -> None:
    bomb = send(zlib.compress(b" " * 50_000_000), headers={"Content-Encoding": "deflate"})
    async with serve_model(always(bomb)) as server, open_endpoint(server.base_url) as endpoint:
        with pytest.raises(ModelProtocolError, match="larger than"):
            await endpoint.post("/chat/completions", b"{}", timeout_s=5)


async def test_a_false_compression_is_transient() -> None:
    garbled = send(b"not gzip", headers={"Content-Encoding": "gzip"})
    async with serve_model(always(garbled)) as server, open_endpoint(server.base_url) as endpoint:
        with pytest.raises(ModelTransient, match="DecodingError"):
            await endpoint.post("/chat/completions", b"{}", timeout_s=5)


async def test_no_cookie_is_sent_back() -> None:
    """A load balancer's cookie would pin every rollout to one replica."""
    sticky = send(b"{}", headers={"Set-Cookie": "replica=7; Path=/"})
    async with serve_model(always(sticky)) as server:
        # By name: cookie jars take none from bare addresses.
        named = server.base_url.replace("127.0.0.1", "localhost")
        async with open_endpoint(named) as endpoint:
            for _ in range(2):
                await endpoint.post("/chat/completions", b"{}", timeout_s=5)
    assert len(server.requests) == 2
    assert "Cookie" not in server.requests[1].headers


async def test_connections_are_kept_between_calls() -> None:
    async with serve_model(always(say("hi"))) as server, open_endpoint(server.base_url) as endpoint:
        for _ in range(5):
            await endpoint.post("/chat/completions", b"{}", timeout_s=5)
        opened = endpoint._transport.client.connector._conns  # type: ignore[attr-defined]
        assert sum(map(len, opened.values())) == 1


async def test_the_environments_proxy_is_used_but_not_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_model(always(say("from the proxy"))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "")
        async with open_endpoint("http://model.invalid/v1") as endpoint:
            reply = await endpoint.post("/chat/completions", b"{}", timeout_s=5)
        assert b"from the proxy" in reply.body
        async with (
            serve_model(always(say("direct"))) as server,
            open_endpoint(server.base_url) as endpoint,
        ):
            reply = await endpoint.post("/chat/completions", b"{}", timeout_s=5)
        assert b"direct" in reply.body


async def test_another_transport_replaces_the_network() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://nowhere/v1/chat/completions"
        assert request.headers["Authorization"] == "Bearer key"
        return httpx.Response(200, content=request.content)

    transport = httpx.MockTransport(answer)
    async with open_endpoint(
        "http://nowhere/v1/", api_key=SecretStr("key"), transport=transport
    ) as endpoint:
        reply = await endpoint.post("/chat/completions", b"{}", timeout_s=5)
    assert reply.body == b"{}"


async def test_nothing_is_left_open() -> None:
    async with serve_model(always(say("hi"))) as server:
        async with open_endpoint(server.base_url) as endpoint:
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(_post, endpoint)
            session = endpoint._transport.client  # type: ignore[attr-defined]
        assert session.closed
        assert session.connector is None or session.connector.closed


async def _post(endpoint: object) -> None:
    await endpoint.post("/chat/completions", b"{}", timeout_s=5)  # type: ignore[attr-defined]


async def test_an_https_endpoint_verifies_certificates() -> None:
    async with open_endpoint("https://127.0.0.1:9/v1") as endpoint:
        context = endpoint._transport.ssl_context  # type: ignore[attr-defined]
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 10
