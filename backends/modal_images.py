"""Images on Modal: from a registry, or built there from a Dockerfile directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import modal
from anyio.abc import TaskGroup

from hermes_rl.backends.cloud_vendor import CloudImage
from hermes_rl.backends.docker_context import BuildContext
from hermes_rl.backends.modal_errors import TABLE
from hermes_rl.backends.modal_options import ModalOptions
from hermes_rl.backends.shared_work import SharedWork
from hermes_rl.errors import ConfigError
from hermes_rl.sandbox import SandboxSpec

__all__ = ["ModalImages"]

T = TypeVar("T")
READERS = 2


class ModalImages:
    """Makes each image once per run; Modal itself builds one content once per account."""

    def __init__(self, app: Any, options: ModalOptions, tasks: TaskGroup) -> None:
        self._app = app
        self._options = options
        self._shared: SharedWork[CloudImage] = SharedWork(tasks)
        self._readers = anyio.CapacityLimiter(READERS)

    async def image_for(self, spec: SandboxSpec) -> CloudImage:
        """Return the spec's image, built.

        Raises:
            ConfigError: Neither the spec nor the backend names an image.
            ImageNotFound: The registry has none, or keeps it from Modal.
            ImageBuildFailed: Carries the end of the build's output.
        """
        if spec.dockerfile_dir is not None:
            directory = spec.dockerfile_dir
            digest = await self._threaded(lambda: BuildContext.scan(directory).digest())
            name = f"{directory.parent.name}/{directory.name}@{digest[:12]}"
            return await self._shared.get(digest, lambda: self._build(name, directory))
        tag = spec.image or self._options.image
        if not tag:
            raise ConfigError(
                "The modal backend has no image for this task. Name one: "
                "--env.terminal_image IMAGE (or the backend option 'image')."
            )
        return await self._shared.get(tag, lambda: self._pull(tag))

    async def _threaded(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)

    async def _build(self, name: str, directory: Path) -> CloudImage:
        image = modal.Image.from_dockerfile(
            directory / "Dockerfile", context_dir=directory, add_python=self._options.add_python
        )
        return await self._made(name, image)

    async def _pull(self, tag: str) -> CloudImage:
        image = modal.Image.from_registry(tag, add_python=self._options.add_python)
        return await self._made(tag, image)

    async def _made(self, name: str, image: Any) -> CloudImage:
        with TABLE.call("image", limit_s=None):
            return CloudImage(name, await image.build.aio(self._app))
