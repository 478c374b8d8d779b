"""Bringing the interpreter directory to a daemon that does not see our files.

A daemon on another machine (or in another mount namespace) gets it as a named volume, filled once
through a container that is created but never started. That container's name is the lock: the
daemon allows it once, so concurrent runs fill one after the other, and the second finds the
manifest, which is written last.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.backends.runtime import MANIFEST, MOUNT_POINT, Runtime
from hermes_rl.errors import CreateError

__all__ = ["ensure_volume", "is_unseen_by_daemon", "is_without_interpreter"]

RUNTIME_LABEL = "hermes.runtime"
FILL_TIMEOUT_S = 120.0
LOCK_POLL_S = 0.2


def is_unseen_by_daemon(failure: EngineFailure) -> bool:
    """Tell whether a create call failed because the daemon lacks the directory to bind."""
    return failure.status == 400 and "bind source path does not exist" in failure.message


def is_without_interpreter(error: CreateError) -> bool:
    """Tell whether a sandbox did not start because nothing lies where our interpreter should."""
    return f'exec: "{MOUNT_POINT}/' in str(error) and "no such file" in str(error)


async def ensure_volume(
    engine: DockerEngine, runtime: Runtime, *, image: str, labels: Mapping[str, str]
) -> str:
    """Return the name of a volume that holds the runtime, filling it if it is new.

    Args:
        engine: The daemon.
        runtime: The directory here.
        image: Id of any image, to make the container from that carries the files.
        labels: Of that container, so that a sweep removes it if we are killed.

    Raises:
        EngineFailure: The daemon failed, or another run has been filling it for 120 s.
    """
    name = f"hermes-runtime-{runtime.digest}"
    mount = {
        "Type": "volume",
        "Source": name,
        "Target": MOUNT_POINT,
        "VolumeOptions": {"NoCopy": True, "Labels": {RUNTIME_LABEL: runtime.digest}},
    }
    body = {
        "Image": image,
        "Entrypoint": ["/"],
        "Labels": dict(labels),
        "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
    }
    try:
        with anyio.fail_after(FILL_TIMEOUT_S):
            await _take_lock(engine, name, body)
            try:
                if not await _is_filled(engine, name):
                    await engine.put_archive(name, MOUNT_POINT, _chunks(runtime.path))
            finally:
                with anyio.CancelScope(shield=True):
                    await engine.remove(name)
    except TimeoutError:
        message = f"the volume {name} could not be filled within {FILL_TIMEOUT_S:g} s"
        raise EngineFailure(0, message) from None
    return name


async def _take_lock(engine: DockerEngine, name: str, body: Mapping[str, object]) -> None:
    while True:
        try:
            await engine.create(name, body)
        except EngineFailure as failure:
            if failure.status != 409:
                raise
            await anyio.sleep(LOCK_POLL_S)
        else:
            return


async def _is_filled(engine: DockerEngine, name: str) -> bool:
    try:
        async with engine.get_archive(name, f"{MOUNT_POINT}/{MANIFEST}"):
            return True
    except EngineFailure as failure:
        if failure.status == 404:
            return False
        raise


async def _chunks(root: Path) -> AsyncIterator[bytes]:
    limiter = anyio.CapacityLimiter(1)
    tar = _tar(root)
    while (chunk := await anyio.to_thread.run_sync(next, tar, None, limiter=limiter)) is not None:
        yield chunk


def _tar(root: Path) -> Iterator[bytes]:
    """Yield the directory as a tar stream, directories first and the manifest last."""
    paths = sorted(root.rglob("*"), key=lambda path: (path.name == MANIFEST, str(path)))
    for path in paths:
        entry = tarfile.TarInfo(str(path.relative_to(root)))
        info = path.stat()
        entry.mode = info.st_mode & 0o7777
        entry.mtime = int(info.st_mtime)
        if path.is_dir():
            entry.type = tarfile.DIRTYPE
            yield entry.tobuf()
        else:
            data = path.read_bytes()
            entry.size = len(data)
            yield entry.tobuf() + data + bytes(-len(data) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
