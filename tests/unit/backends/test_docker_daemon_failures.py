"""A daemon that fails, played by a real HTTP server on a socket of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from aiohttp import web

from hermes_rl.backends import docker_engine, docker_fate
from hermes_rl.backends.admission import Admission
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import TIMED_OUT, UNREACHABLE, EngineFailure
from hermes_rl.backends.docker_fate import FateWatch
from hermes_rl.backends.docker_images import ImageStore
from hermes_rl.backends.docker_reaper import Reaper
from hermes_rl.backends.ownership import Owner, labels_for
from hermes_rl.errors import BackendUnavailable, ImageBuildFailed, ImageNotFound, RateLimited
from hermes_rl.sandbox import SandboxSpec

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def _daemon(tmp_path: Path, handler: Handler) -> AsyncIterator[DockerEngine]:
    """Answer ``/version``; everything else is the handler's."""

    async def route(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        return await handler(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", route)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    path = tmp_path / "docker.sock"
    try:
        await web.UnixSite(runner, str(path)).start()
        async with DockerEngine(f"unix://{path}") as engine:
            yield engine
    finally:
        await runner.cleanup()


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status)


async def _streamed(request: web.Request, *lines: str, torn: bool = False) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for line in lines:
        await response.write(line.encode())
    if torn:
        assert request.transport is not None
        request.transport.abort()
    return response


# Pausing


@pytest.mark.parametrize("failing", [0, 3])
async def test_a_pause_that_did_not_freeze_everything_is_tried_again(
    failing: int, tmp_path: Path
) -> None:
    calls = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        assert request.path.endswith("/containers/x/pause")
        calls += 1
        if calls <= failing:
            return _refusal(500, "OCI runtime pause failed: unable to freeze: unknown")
        return web.Response(status=204)

    async with _daemon(tmp_path, handler) as engine:
        await engine.pause("x")
    assert calls == failing + 1


@pytest.mark.parametrize(
    ("message", "tries"), [("unable to freeze", docker_engine.FREEZE_TRIES), ("is not running", 1)]
)
async def test_a_pause_that_never_succeeds_is_the_daemons_failure(
    message: str, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "FREEZE_INTERVAL_S", 0.001)
    calls = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return _refusal(500, message)

    async with _daemon(tmp_path, handler) as engine:
        with pytest.raises(EngineFailure, match=message):
            await engine.pause("x")
    assert calls == tries


# Removing


async def test_a_removal_in_progress_is_waited_for(tmp_path: Path) -> None:
    calls = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        assert (request.method, request.query["force"], request.query["v"]) == ("DELETE", "1", "1")
        calls += 1
        if calls < 3:
            return _refusal(409, "removal of container x is already in progress")
        return _refusal(404, "No such container: x")

    async with _daemon(tmp_path, handler) as engine:
        await engine.remove("x")
    assert calls == 3


async def test_what_could_not_be_removed_is_tried_again_by_the_next_sweep(tmp_path: Path) -> None:
    deleted: list[int] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response([])
        deleted.append(500 if not deleted else 204)
        if deleted[-1] == 204:
            return web.Response(status=204)
        return _refusal(500, "driver failed to remove root filesystem: device or resource busy")

    async with _daemon(tmp_path, handler) as engine:
        reaper = Reaper(engine, Admission(starting=1, removing=1), Owner.current())
        await reaper.remove("abc")
        assert await reaper.sweep() == []
        assert await reaper.sweep() == []
    assert deleted == [500, 204]


async def test_a_sweep_names_only_what_it_removed(tmp_path: Path) -> None:
    labels = labels_for("r", owner=Owner.current(), now_s=0, lease_s=1, extra={})
    entries = [
        {"Id": name * 12, "Image": "i", "State": "created", "Labels": labels} for name in "ab"
    ]
    is_busy = True

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(entries)
        if is_busy and request.path.endswith("a" * 12):
            return _refusal(500, "driver failed to remove root filesystem: device or resource busy")
        return web.Response(status=204)

    async with _daemon(tmp_path, handler) as engine:
        reaper = Reaper(engine, Admission(starting=1, removing=1), Owner.current())
        assert await reaper.sweep() == ["b" * 12]
        is_busy = False
        assert await reaper.sweep() == ["a" * 12, "b" * 12]


# Pulling and building


@asynccontextmanager
async def _store(tmp_path: Path, handler: Handler) -> AsyncIterator[ImageStore]:
    async with _daemon(tmp_path, handler) as engine, anyio.create_task_group() as tasks:
        yield ImageStore(engine, tasks, default=None)
        tasks.cancel_scope.cancel()


def _pulling(*lines: str, torn: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/json"):
            return _refusal(404, "No such image: x")
        return await _streamed(request, *lines, torn=torn)

    return handler


async def test_a_rate_limit_inside_a_pull_is_one(tmp_path: Path) -> None:
    handler = _pulling('{"status":"Pulling"}\n', '{"error":"toomanyrequests: slow down"}\n')
    async with _store(tmp_path, handler) as images:
        with pytest.raises(RateLimited, match="slow down"):
            await images.image_for(SandboxSpec(image="x"))


async def test_an_unreachable_registry_is_told_with_the_image(tmp_path: Path) -> None:
    words = 'Get \\"https://r.example/v2/\\": dial tcp: no such host'
    async with _store(tmp_path, _pulling(f'{{"error":"{words}"}}\n')) as images:
        with pytest.raises(BackendUnavailable, match=r"r\.example/a:1: Get .*docker load"):
            await images.image_for(SandboxSpec(image="r.example/a:1"))


async def test_a_pull_whose_stream_breaks_is_no_success(tmp_path: Path) -> None:
    handler = _pulling('{"status":"Pulling"}\n', torn=True)
    async with _store(tmp_path, handler) as images:
        with pytest.raises(BackendUnavailable):
            await images.image_for(SandboxSpec(image="x"))


async def test_a_pull_that_brings_no_image_is_no_success(tmp_path: Path) -> None:
    async with _store(tmp_path, _pulling('{"status":"Done"}\n')) as images:
        with pytest.raises(ImageNotFound, match="although it was pulled"):
            await images.image_for(SandboxSpec(image="x"))


@pytest.mark.parametrize(
    ("image", "query"),
    [
        ("debian", {"fromImage": "debian", "tag": "latest"}),
        ("debian:12", {"fromImage": "debian:12"}),
        ("localhost:5000/a", {"fromImage": "localhost:5000/a", "tag": "latest"}),
        ("a@sha256:12", {"fromImage": "a@sha256:12"}),
    ],
)
async def test_one_tag_is_pulled_never_all(
    tmp_path: Path, image: str, query: dict[str, str]
) -> None:
    asked: list[dict[str, str]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/images/create"):
            asked.append(dict(request.query))
        return await _pulling()(request)

    async with _store(tmp_path, handler) as images:
        with pytest.raises(ImageNotFound):
            await images.image_for(SandboxSpec(image=image))
    assert asked == [query]


async def test_a_build_whose_stream_breaks_fails_with_its_output(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM x\n")

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/json"):
            return _refusal(404, "No such image: x")
        await request.read()
        return await _streamed(request, '{"stream":"Step 1\\n"}\n', torn=True)

    async with _store(tmp_path, handler) as images:
        with pytest.raises(ImageBuildFailed) as caught:
            await images.image_for(SandboxSpec(dockerfile_dir=context))
    assert caught.value.output == "Step 1\n"
    assert caught.value.retryable


async def test_a_long_message_is_read_and_an_endless_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "MAX_LINE_BYTES", 500_000)
    long = '{"status":"' + "x" * 300_000 + '"}\n'
    async with _store(tmp_path, _pulling(long, '{"error":"the end"}')) as images:
        with pytest.raises(BackendUnavailable, match="the end"):
            await images.image_for(SandboxSpec(image="x"))
    async with _store(tmp_path, _pulling("x" * 1_000_000)) as images:
        with pytest.raises(BackendUnavailable, match="exceeds 500000 bytes"):
            await images.image_for(SandboxSpec(image="x"))


# Calls


async def test_a_daemon_that_hangs_is_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await anyio.sleep(60)
        return web.Response()

    async with _daemon(tmp_path, handler) as engine:
        with pytest.raises(EngineFailure, match=r"no answer within 0\.1 s") as caught:
            await engine.json("info", timeout_s=0.1)
    assert caught.value.status == TIMED_OUT


async def test_a_daemon_that_hangs_up_is_unreachable(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with _daemon(tmp_path, handler) as engine:
        with pytest.raises(EngineFailure) as caught:
            await engine.json("info")
        assert caught.value.status == UNREACHABLE
        with pytest.raises(EngineFailure):
            await engine.attach("x")


async def test_an_attach_without_a_protocol_switch_is_a_failure(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return _refusal(404, "No such container: x")

    async with _daemon(tmp_path, handler) as engine:
        with pytest.raises(EngineFailure, match="No such container"):
            await engine.attach("x")


# Events


async def test_the_event_stream_is_opened_again_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_fate, "RECONNECT_S", 0.01)
    opened = 0
    event = '{"Action":"%s","Actor":{"ID":"%s","Attributes":{"exitCode":"137"}}}\n'

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal opened
        if request.path.endswith("/json"):
            return _refusal(404, "No such container: abc")
        opened += 1
        if opened == 1:
            return await _streamed(request, event % ("oom", "abc"), event % ("die", "stranger"))
        if opened == 2:
            return _refusal(500, "not yet")
        if opened == 3:
            return await _streamed(request, "{}\n[]\n", '{"Actor":null}\n', "no JSON\n")
        return await _streamed(request, event % ("die", "abc"))

    async with _daemon(tmp_path, handler) as engine:
        fates = FateWatch(engine, "label=x")
        fates.track("abc")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fates.watch)
            with anyio.fail_after(60):
                fate = await fates.ending("abc")
            tasks.cancel_scope.cancel()
    assert (fate.out_of_memory, fate.exit_code, fate.removed) == (True, 137, True)
    assert opened >= 4
