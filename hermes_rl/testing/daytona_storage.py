"""The object storage of the loopback Daytona, and the images built from what is in it.

The SDK uploads each source of a Dockerfile's COPY as a tar, to S3. Its S3 client takes https only;
:func:`allow_loopback_storage` lets it speak plain http to this machine.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web

from hermes_rl.testing.loopback_boxes import build_image, has_image

__all__ = ["Storage", "allow_loopback_storage", "entrypoint_of", "image_from"]

_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Storage:
    """As much of S3 as an upload needs: HEAD, PUT, and uploads in parts."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._parts: dict[str, dict[int, bytes]] = {}

    async def serve(self, request: web.Request) -> web.Response:
        """Answer one request."""
        key = request.match_info["tail"].partition("/")[2]
        if request.method == "HEAD":
            return self._head(key)
        if request.method == "POST":
            return self._finish(key) if "uploadId" in request.query else self._begin(key)
        if request.method != "PUT":
            return web.Response(status=405)
        data = await request.read()
        if "partNumber" in request.query:
            self._parts[key][int(request.query["partNumber"])] = data
        else:
            self.objects[key] = data
        return web.Response(headers={"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def _head(self, key: str) -> web.Response:
        if key not in self.objects:
            return web.Response(status=404)
        return web.Response(
            headers={"ETag": '"loopback"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"},
            body=self.objects[key],
        )

    def _begin(self, key: str) -> web.Response:
        self._parts[key] = {}
        return _xml(
            f"<InitiateMultipartUploadResult {_NAMESPACE}><UploadId>1</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def _finish(self, key: str) -> web.Response:
        parts = self._parts.pop(key)
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        return _xml(
            f'<CompleteMultipartUploadResult {_NAMESPACE}><ETag>"loopback"</ETag>'
            "</CompleteMultipartUploadResult>"
        )


def _xml(text: str) -> web.Response:
    return web.Response(text=f'<?xml version="1.0"?>{text}', content_type="application/xml")


def _split(build: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a Dockerfile's lines without its entrypoints, and the last of those."""
    text = str(build.get("dockerfileContent") or "FROM hermes-test:latest\n")
    entrypoint: list[str] = []
    lines = []
    for line in text.splitlines(keepends=True):
        if line.startswith("ENTRYPOINT ["):
            entrypoint = orjson.loads(line.removeprefix("ENTRYPOINT "))
        else:
            lines.append(line)
    return lines, entrypoint


def entrypoint_of(build: Mapping[str, Any]) -> list[str]:
    """Return what a sandbox of this image runs: without an entrypoint of its own, nothing."""
    return _split(build)[1] or ["sleep", "infinity"]


async def image_from(build: Mapping[str, Any], storage: Storage) -> tuple[str, bool]:
    """Return the Docker name of an image and whether it was built for this.

    Args:
        build: As the SDK sends it: ``dockerfileContent`` and ``contextHashes``.
        storage: Holds the contexts.

    Raises:
        OSError: It cannot be had; says why.
    """
    text = "".join(_split(build)[0])
    hashes = list(build.get("contextHashes") or ())
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) == 1 and lines[0].startswith("FROM "):
        name = lines[0].split()[1]
        if not await has_image(name):
            raise OSError(f"manifest for {name} not found: manifest unknown")
        return name, False
    digest = hashlib.sha256("\0".join([text, *hashes]).encode()).hexdigest()[:24]
    tag = f"hermes-loopback:{digest}"
    if await has_image(tag):
        return tag, False
    files: dict[str, tuple[bytes, int]] = {}
    for each in hashes:
        files |= _unpacked(storage.objects[f"loopback/{each}/context.tar"])
    await build_image(tag, text, files)
    return tag, True


def _unpacked(data: bytes) -> dict[str, tuple[bytes, int]]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                files[member.name] = (content.read(), member.mode)
    return files


@contextmanager
def allow_loopback_storage() -> Iterator[None]:
    """Let the SDK's S3 client speak plain http to this machine while the context is open."""
    object_storage: Any = importlib.import_module("daytona._async.object_storage")
    real = object_storage.S3Store

    def permissive(*words: Any, **options: Any) -> Any:
        if str(options.get("endpoint", "")).startswith("http://127.0.0.1:"):
            client_options = {**options.get("client_options", {}), "allow_http": True}
            options["client_options"] = client_options
        return real(*words, **options)

    object_storage.S3Store = permissive
    try:
        yield
    finally:
        object_storage.S3Store = real
