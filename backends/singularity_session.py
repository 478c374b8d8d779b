"""The singularity backend while it is connected: its helper processes, images and containers.

There are no instances: a container is one ``exec`` whose command is our outpost over the mounted
interpreter, started by a helper process. When the outpost ends so does the container, and the
outpost ends when its stream does.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import anyio.to_thread

from hermes_rl.backends.local_directories import SandboxDirectory, abandoned, remove_locked
from hermes_rl.backends.local_sandbox import LocalSandbox
from hermes_rl.backends.local_session import LocalSession
from hermes_rl.backends.outpost.start import outpost_options
from hermes_rl.backends.runtime import MOUNT_POINT, Runtime
from hermes_rl.backends.singularity_images import Image, ImageStore
from hermes_rl.backends.singularity_options import SingularityOptions
from hermes_rl.backends.singularity_probe import Findings, empty_image
from hermes_rl.backends.singularity_program import (
    HOME,
    limits_for,
    no_interfaces,
    program_environment,
)
from hermes_rl.backends.singularity_sandbox import SingularitySandbox
from hermes_rl.backends.ssh_dockerfile import ImageRecipe, recipe_of
from hermes_rl.backends.start_deadline import coming_up
from hermes_rl.errors import CreateError, Unsupported
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, SandboxSpec

__all__ = ["SingularitySession"]

logger = logging.getLogger(__name__)

DEFAULT_MEMORY_MB = 4096
DEFAULT_PIDS = 4096
STATE_DIR = "/dev/shm/.hermes"
"""Where the outpost keeps session state: in memory, out of the way of ``rm -rf /tmp/*``."""
SCRUB_TIMEOUT_S = 5.0
"""Part of the time that closing a sandbox may take; a sweep comes back in a minute."""


class SingularitySession(LocalSession):
    """Opened and closed in one task, like its base.

    Args:
        settings: Of the backend.
        limits: How much is done at once.
        capabilities: Of the sandboxes.
        runtime: The interpreter to mount.
        findings: What this machine allows.
        options: Of the backend.
    """

    backend = "singularity"
    _runtime: Runtime

    def __init__(
        self,
        settings: BackendSettings,
        limits: BackendLimits,
        capabilities: frozenset[Capability],
        runtime: Runtime,
        *,
        findings: Findings,
        options: SingularityOptions,
    ) -> None:
        super().__init__(settings, limits, capabilities, runtime)
        self._findings = findings
        self._options = options
        self._cache_dir = settings.cache_dir

    async def open(self) -> None:
        """Make the directory, start the helpers, begin to take wishes for images."""
        await super().open()
        self._images = ImageStore(
            program=self._findings.confinement.program,
            options=self._options,
            cache_dir=self._cache_dir,
            tasks=self._tasks,
        )
        self._stack.callback(self._tasks.cancel_scope.cancel)

    async def create(
        self,
        spec: SandboxSpec,
        *,
        prepare: Callable[[LocalSandbox], Awaitable[None]] | None = None,
    ) -> LocalSandbox:
        """Start a sandbox; a cancelled caller leaves nothing.

        Raises:
            CreateError: See its subclasses.
            Unsupported: Its Dockerfile needs a build, or says which command is the image's.
        """
        if spec.image_command and spec.dockerfile_dir is not None:
            raise Unsupported(
                "The singularity backend cannot start the command of an image that has a "
                "Dockerfile. Build the image elsewhere and name it.",
                backend=self.backend,
            )
        recipe = await recipe_of(spec, threads=self._threads, backend=self.backend)
        name = None if recipe is None else recipe.image
        image = await self._images.image_for(name, timeout_s=spec.build_timeout_s)

        async def fill(sandbox: LocalSandbox) -> None:
            if recipe is not None:
                await recipe.apply(sandbox, threads=self._threads)
            if spec.image_command and image.entrypoint:
                await sandbox.start_detached(image.entrypoint)
            if prepare is not None:
                await prepare(sandbox)

        return await super().create(self._completed(spec, image, recipe), prepare=fill)

    def _completed(
        self, spec: SandboxSpec, image: Image, recipe: ImageRecipe | None
    ) -> SandboxSpec:
        """Fill in from the image what the spec leaves open."""
        if recipe is not None:
            spec = recipe.completed(spec)
        usual = (recipe.workdir if recipe is not None else "") or image.workdir
        home = "/" if self._findings.uid == 0 else HOME
        switches = Capability.USERS in self._capabilities
        return replace(
            spec,
            image=image.path,
            user=spec.user or (image.user if switches else "") or None,
            workdir=str(PurePosixPath("/", usual or home, spec.workdir or "")),
        )

    async def _boot(self, spec: SandboxSpec) -> LocalSandbox:
        """Also wait for its first word: a runtime that starts is several programs at work."""
        sandbox = await super()._boot(spec)
        assert isinstance(sandbox, SingularitySandbox)
        deadline_s = anyio.current_time() + spec.start_timeout_s
        async with coming_up(sandbox, spec, backend=self.backend, deadline_s=deadline_s):
            await sandbox.send_options(_options_of(spec))
            await sandbox.ready(SandboxSpec(), timeout_s=spec.start_timeout_s)
        return sandbox

    def _message(self, spec: SandboxSpec, directory: SandboxDirectory) -> dict[str, object]:
        overlay = directory.top / "overlay"
        overlay.mkdir()
        size = len(_options_of(spec))
        is_apart = (spec.network or self._network) == "none"
        argv = self._findings.confinement.argv(
            spec.image or "",
            self._runtime.argv("outpost", f"--more-options={size}"),
            overlay=overlay,
            workdir=directory.tmp,
            runtime=self._runtime.path,
            home=None if self._findings.uid == 0 else directory.home,
            interfaces=no_interfaces(directory.top / "net") if is_apart else None,
            limits=self._limits(spec),
        )
        return {
            "argv": argv,
            "env": program_environment(),
            "remove": [str(directory.top)],
            "stderr": str(self._complaint_of(directory)),
        }

    def _complaint_of(self, directory: SandboxDirectory) -> Path:
        """Beside the sandbox's directory, which is gone when we want to know why it ended."""
        return directory.top.with_suffix(".log")

    def _limits(self, spec: SandboxSpec) -> list[str]:
        """Return the options that limit it; where nothing can, nothing was promised."""
        if not self._findings.keeps_limits:
            return []
        return limits_for(
            cpus=spec.cpus,
            memory_mb=spec.memory_mb or DEFAULT_MEMORY_MB,
            pids=spec.pids or DEFAULT_PIDS,
        )

    def _made(self, directory: SandboxDirectory, **options: Any) -> LocalSandbox:
        return SingularitySandbox(
            complaint=self._complaint_of(directory),
            scrub=self._scrub,
            is_memory_limited=self._findings.keeps_limits,
            directory=directory,
            **options,
        )

    async def _remove_abandoned(self) -> list[str]:
        doomed = await self._in_thread(abandoned)
        for path in doomed:
            if not await self._in_thread(partial(remove_locked, str(path))):
                await self._scrub(path)
        return await self._in_thread(lambda: [str(path) for path in doomed if not path.exists()])

    async def _scrub(self, top: Path) -> None:
        """Remove what belongs to users that exist inside only: by root of a container.

        What cannot be removed is logged: whoever closes a sandbox can do nothing about it.
        """
        await anyio.to_thread.run_sync(self._scrub_blocking, top, limiter=self._threads)

    def _scrub_blocking(self, top: Path) -> None:
        if not os.path.lexists(top):
            return
        try:
            with empty_image() as image:
                # At the end of its input, which is at once, the outpost removes what it is told.
                subprocess.run(
                    self._scrubber(top, image),
                    input=b"",  # a pipe: the null device cannot be waited for
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    timeout=SCRUB_TIMEOUT_S,
                    env=program_environment(),
                    cwd="/",
                )
        except subprocess.TimeoutExpired:
            logger.warning("removing other users' files in %s took over %g s", top, SCRUB_TIMEOUT_S)
            return
        except OSError as error:
            logger.warning("removing other users' files in %s: %s", top, error)
            return
        if os.path.lexists(top):
            logger.warning("other users' files in %s could not be removed", top)

    def _scrubber(self, top: Path, image: Path) -> list[str]:
        return self._findings.confinement.argv(
            str(image),
            self._runtime.argv("outpost", f"--remove=/mnt/{top.name}"),
            overlay=image.with_name("overlay"),
            workdir=image.with_name("workdir"),
            runtime=self._runtime.path,
            mnt=top.parent,
        )


def _options_of(spec: SandboxSpec) -> bytes:
    """Return the outpost's options, as it reads them from its input.

    Raises:
        CreateError: A variable that no process can have.
    """
    options = outpost_options(lease_s=spec.lease_s, env=spec.env, user=spec.user)
    options += [f"--cwd={spec.workdir}", f"--state-dir={STATE_DIR}", f"--runtime-dir={MOUNT_POINT}"]
    if any("\0" in option for option in options):
        raise CreateError(
            "An environment variable holds a NUL character, which no process can have.",
            backend="singularity",
        )
    return "\0".join(options).encode("utf-8", "surrogateescape")
