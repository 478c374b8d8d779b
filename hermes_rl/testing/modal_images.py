"""Images of the loopback Modal: what the SDK orders, built by Docker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import anyio

from hermes_rl.testing.loopback_boxes import build_image, has_image, remove_image

__all__ = ["ImageBench"]


@dataclass(slots=True)
class _Image:
    """An image as ordered, and its tag once it is built."""

    lines: list[str]
    bases: dict[str, str]
    mount_id: str
    tag: str = ""


class ImageBench:
    """Builds images once per content.

    Args:
        in_containers: Docker builds them; else they exist by name only.
    """

    def __init__(self, *, in_containers: bool) -> None:
        self._in_containers = in_containers
        self._images: dict[str, _Image] = {}
        self._files: dict[str, bytes] = {}
        self._mounts: dict[str, dict[str, tuple[str, int]]] = {}
        self._turn = anyio.Lock()
        self._built_tags: list[str] = []
        self.builds = 0
        """Images that Docker was asked for."""

    def put_file(self, digest: str, data: bytes) -> bool:
        """Take a file's content; a question without content tells whether it is there."""
        if data:
            self._files[digest] = data
        is_empty = digest == hashlib.sha256(b"").hexdigest()
        return is_empty or digest in self._files

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return those whose content is not here."""
        return [digest for digest in digests if digest not in self._files]

    def mount(self, files: Iterable[Any]) -> str:
        """Take a list of files and return its id."""
        listing = {file.filename: (file.sha256_hex, file.mode or 0o644) for file in files}
        mount_id = f"mo-{hashlib.sha256(repr(sorted(listing.items())).encode()).hexdigest()[:22]}"
        self._mounts[mount_id] = listing
        return mount_id

    def order(self, image: Any) -> tuple[str, bool]:
        """Take an order; return the image's id and whether it is built already."""
        image_id = f"im-{hashlib.sha256(image.SerializeToString()).hexdigest()[:22]}"
        bases = {base.docker_tag: base.image_id for base in image.base_images}
        lines = list(image.dockerfile_commands)
        known = self._images.setdefault(image_id, _Image(lines, bases, image.context_mount_id))
        return image_id, bool(known.tag)

    async def build(self, image_id: str) -> str:
        """Build an image; return why it cannot be built, or ""."""
        image = self._images[image_id]
        async with self._turn:
            if not image.tag:
                try:
                    image.tag = await self._built(image, image_id)
                except OSError as error:
                    return str(error)
        return ""

    async def _built(self, image: _Image, image_id: str) -> str:
        lines = [self._resolved(line, image) for line in image.lines if line.strip()]
        if not self._in_containers:
            return image_id
        if len(lines) == 1 and lines[0].startswith("FROM hermes-loopback"):
            return lines[0].split()[1]
        if len(lines) == 1 and not await has_image(lines[0].split()[1]):
            raise OSError(f"manifest for {lines[0].split()[1]} not found: manifest unknown")
        tag = f"hermes-loopback:{image_id[3:]}"
        self.builds += 1
        await build_image(tag, "\n".join(lines) + "\n", self._context(image))
        self._built_tags.append(tag)
        return tag

    def _resolved(self, line: str, image: _Image) -> str:
        words = line.split()
        if words[:1] == ["FROM"] and words[1:2] and words[1] in image.bases:
            base = self._images[image.bases[words[1]]]
            return line.replace(words[1], base.tag, 1)
        return line

    def _context(self, image: _Image) -> dict[str, tuple[bytes, int]]:
        listing = self._mounts.get(image.mount_id, {})
        return {
            name: (self._files.get(digest, b""), mode) for name, (digest, mode) in listing.items()
        }

    async def close(self) -> None:
        """Remove the names of what was built."""
        for tag in reversed(self._built_tags):
            await remove_image(tag)

    def tag(self, image_id: str) -> str:
        """Return the Docker name of a built image."""
        image = self._images.get(image_id)
        return image.tag if image is not None else ""
