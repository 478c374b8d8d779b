"""The engine client against a real daemon; one test for each private name it leans on."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import uuid
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import anyio
import pytest
import pytest_asyncio

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.docker_archive import first_file
from hermes_rl.backends.docker_attach import AttachTransport
from hermes_rl.backends.docker_connection import docker_host
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import UNREACHABLE, EngineFailure
from hermes_rl.errors import BackendUnavailable, ConfigError
from hermes_rl.testing.leaks import leak_census

from .docker_boxes import docker

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

LABEL = f"hermes.test={uuid.uuid4().hex}"
ECHO = "echo ready; while read line; do echo got $line; done"


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[DockerEngine]:
    async with DockerEngine(docker_host()) as engine:
        try:
            yield engine
        finally:
            for entry in await engine.containers(LABEL):
                await engine.remove(entry["Id"])


def _config(script: str = ECHO, **changes: Any) -> dict[str, Any]:
    key, _, value = LABEL.partition("=")
    host = {"AutoRemove": True, "NetworkMode": "none", "Memory": 64 << 20, "MemorySwap": 64 << 20}
    return {
        "Image": "hermes-test:latest",
        "Entrypoint": ["bash", "-c", script],
        "Labels": {key: value},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "HostConfig": host,
        **changes,
    }


async def _created(engine: DockerEngine, **changes: Any) -> str:
    return await engine.create(f"hermes-test-{uuid.uuid4().hex[:12]}", _config(**changes))


async def _started(engine: DockerEngine, **changes: Any) -> tuple[str, AttachTransport]:
    container = await _created(engine, **changes)
    transport = await engine.attach(container)
    await engine.start(container)
    return container, transport


async def _line(transport: AttachTransport) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = await transport.receive()
        assert piece, "the stream ended"
        data += piece
    return data


# Private names


async def test_query_json_makes_one_call(engine: DockerEngine) -> None:
    assert (await engine.json("info"))["NCPU"] >= 1


async def test_a_refused_call_carries_status_and_words(engine: DockerEngine) -> None:
    with pytest.raises(EngineFailure, match="No such container: nosuch") as caught:
        await engine.inspect("nosuch")
    assert caught.value.status == 404


async def test_attaching_before_the_start_loses_no_output(engine: DockerEngine) -> None:
    for _ in range(3):
        container, transport = await _started(engine)
        assert await _line(transport) == b"ready\n"
        await transport.send(b"x\n")
        assert await _line(transport) == b"got x\n"
        await transport.aclose()
        await engine.remove(container)


async def test_closing_the_stream_ends_the_container(engine: DockerEngine) -> None:
    _, transport = await _started(engine)
    assert await _line(transport) == b"ready\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await transport.aclose()
        await transport.aclose()
        del transport
    with anyio.fail_after(60):
        while await engine.containers(LABEL):
            await anyio.sleep(0.05)


async def test_a_closed_stream_reads_its_end_and_refuses_to_send(engine: DockerEngine) -> None:
    _, transport = await _started(engine)
    await transport.aclose()
    assert await transport.receive() == b""
    with pytest.raises(ConnectionError):
        await transport.send(b"x")


async def test_the_stream_ends_when_the_container_does(engine: DockerEngine) -> None:
    _, transport = await _started(engine, script="echo out; echo err >&2; read line")
    assert await _line(transport) == b"out\n"
    await transport.send(b"\n")
    assert await transport.receive() == b""
    assert transport.stderr == b"err\n"
    with anyio.fail_after(60):
        while True:
            try:
                await transport.send(b"x\n")
            except ConnectionError:
                break
            await anyio.sleep(0.05)
    await transport.aclose()


async def test_a_reader_wakes_when_its_stream_is_closed(engine: DockerEngine) -> None:
    _, transport = await _started(engine)
    assert await _line(transport) == b"ready\n"
    ended: list[bytes] = []

    async def read() -> None:
        ended.append(await transport.receive())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.05)
            await transport.aclose()
    assert ended == [b""]


async def test_a_cancelled_sender_does_not_disturb_the_others(engine: DockerEngine) -> None:
    script = "echo ready; sleep 2; head -c 8000006 | wc -c; read line"
    container, transport = await _started(engine, script=script)
    assert await _line(transport) == b"ready\n"
    with anyio.move_on_after(0.2) as scope:
        await transport.send(bytes(8_000_000))
    assert scope.cancelled_caught
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(transport.send, b"x\n")
        assert await _line(transport) == b"8000006\n"
    await transport.aclose()
    await engine.remove(container)


async def test_a_cancelled_attach_leaves_nothing_open(engine: DockerEngine) -> None:
    container = await _created(engine)
    await engine.json("version")
    async with leak_census(grace_s=5):
        for delay_s in (0, 0.001, 0.003):
            with anyio.move_on_after(delay_s):
                transport = await engine.attach(container)
                await transport.aclose()


async def test_more_than_a_hundred_streams_leave_room_for_calls(engine: DockerEngine) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(101):
            request = engine._response("events", params={"since": "0"})
            await stack.enter_async_context(request)
        with anyio.fail_after(60):
            assert (await engine.json("version"))["ApiVersion"]


async def test_an_archive_is_streamed(engine: DockerEngine) -> None:
    container, transport = await _started(
        engine, script="head -c 8000000 /dev/urandom >/big; sha256sum /big; read line"
    )
    digest = (await _line(transport)).split()[0].decode()
    async with engine.get_archive(container, "/big") as (stat, chunks):
        assert (stat.size_bytes, stat.is_regular, stat.is_link) == (8_000_000, True, False)
        pieces = [piece async for piece in first_file(chunks)]
    assert len(pieces) > 20
    assert hashlib.sha256(b"".join(pieces)).hexdigest() == digest
    await transport.aclose()


async def test_an_archive_left_early_leaves_the_client_usable(engine: DockerEngine) -> None:
    container = await _created(engine)
    async with leak_census(grace_s=5), engine.get_archive(container, "/usr/bin") as (stat, chunks):
        assert stat.is_directory
        await anext(chunks)
    assert (await engine.inspect(container))["Id"] == container


@pytest.mark.parametrize(
    ("path", "kind"), [("/bin/sh", "regular"), ("/bin", "link"), ("/usr", "directory")]
)
async def test_a_stat_tells_files_links_and_directories(
    engine: DockerEngine, path: str, kind: str
) -> None:
    container = await _created(engine)
    real = {"/bin/sh": "/usr/bin/bash"}.get(path, path)
    async with engine.get_archive(container, real) as (stat, _):
        assert (stat.is_regular, stat.is_link, stat.is_directory) == (
            kind == "regular",
            kind == "link",
            kind == "directory",
        )


async def test_a_tar_can_be_put_from_a_generator(engine: DockerEngine) -> None:
    container = await _created(engine)
    data = os.urandom(3 << 20)

    async def chunks() -> AsyncIterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            entry = tarfile.TarInfo("blob")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for start in range(0, buffer.tell(), 100_000):
            yield buffer.getvalue()[start : start + 100_000]

    await engine.put_archive(container, "/srv", chunks())
    async with engine.get_archive(container, "/srv/blob") as (_, pieces):
        assert b"".join([piece async for piece in first_file(pieces)]) == data


# Commands by the engine


async def test_a_command_of_the_engine_gives_code_output_and_takes_input(
    engine: DockerEngine,
) -> None:
    container, transport = await _started(engine)
    seen: dict[int, bytes] = {1: b"", 2: b""}

    def sink(fd: int, data: bytes) -> None:
        seen[fd] += data

    code = await engine.run(
        container,
        ["bash", "-c", 'read x; echo "$x $A $PWD"; echo err >&2; exit 9'],
        sink,
        user="nobody",
        workdir="/usr",
        env={"A": "1"},
        stdin=b"in\n",
    )
    assert (code, seen) == (9, {1: b"in 1 /usr\n", 2: b"err\n"})
    await transport.aclose()


async def test_a_command_past_its_time_is_an_engine_failure(engine: DockerEngine) -> None:
    container, transport = await _started(engine)
    with pytest.raises(EngineFailure, match=r"no answer within 0\.5 s"):
        await engine.run(container, ["sleep", "60"], lambda *_: None, timeout_s=0.5)
    await transport.aclose()


# Life


async def test_removing_what_is_not_there_is_success(engine: DockerEngine) -> None:
    await engine.remove("nosuch")


@pytest.mark.parametrize("state", ["created", "running", "paused"])
async def test_removal_works_in_every_state_and_for_many_at_once(
    engine: DockerEngine, state: str
) -> None:
    container = await _created(engine)
    if state != "created":
        await engine.start(container)
    if state == "paused":
        await engine.pause(container)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(engine.remove, container)
    assert await engine.containers(LABEL) == []


async def test_changes_are_listed(engine: DockerEngine) -> None:
    container, transport = await _started(
        engine, script="touch /new; rm /etc/issue; echo x >>/etc/passwd; echo; read line"
    )
    await _line(transport)
    kinds = {change.path: change.kind for change in await engine.changes(container)}
    assert kinds["/new"] == "added"
    assert (kinds["/etc/issue"], kinds["/etc/passwd"]) == ("deleted", "modified")
    await transport.aclose()


async def test_events_tell_of_memory_and_death(engine: DockerEngine) -> None:
    seen: list[str] = []
    started = anyio.Event()

    async def follow() -> None:
        async with aclosing(engine.events(LABEL)) as events:
            started.set()
            async for event in events:
                seen.append(event["Action"])
                if event["Action"] == "die":
                    assert event["Actor"]["Attributes"]["exitCode"] == "137"
                    return

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await started.wait()
            await anyio.sleep(0.2)
            script = "exec python3 -c 'x = bytes(1) * (200 << 20)'"
            _, transport = await _started(engine, script=script)
    assert seen == ["oom", "die"]
    await transport.aclose()


# Reaching the daemon


@pytest.mark.parametrize(
    "host", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1", "http://127.0.0.1:1"]
)
async def test_a_daemon_that_is_not_there_is_unreachable(host: str) -> None:
    async with leak_census(grace_s=5):
        with pytest.raises(EngineFailure) as caught:
            await DockerEngine(host).__aenter__()
        assert caught.value.status == UNREACHABLE


async def test_an_address_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="unix:///PATH"):
        await DockerEngine("ssh://host").__aenter__()


def test_the_daemons_address_is_docker_hosts() -> None:
    assert docker_host({"DOCKER_HOST": "tcp://1.2.3.4:5"}) == "tcp://1.2.3.4:5"
    assert docker_host({}) in ("unix:///run/docker.sock", "unix:///var/run/docker.sock")


def test_no_daemon_at_all_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.is_socket", lambda _: False)
    with pytest.raises(BackendUnavailable, match=r"/run/docker\.sock.*set DOCKER_HOST"):
        docker_host({})


def test_the_tests_left_nothing() -> None:
    assert docker("ps", "-aq", "--filter", f"label={LABEL}") == ""
