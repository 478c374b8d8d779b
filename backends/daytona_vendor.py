"""Daytona, as the cloud session sees it: the calls of its SDK, each with a deadline of ours."""

from __future__ import annotations

import importlib.metadata
import math
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaConfig,
    Image,
    ListSandboxesQuery,
    Resources,
)
from daytona.common.pty import PtySize

from hermes_rl.backends.cloud_inventory import examine_account
from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import IDLE_COMMAND, BoxRecord, CloudImage, Fate, Order
from hermes_rl.backends.daytona_errors import TABLE
from hermes_rl.backends.daytona_options import DaytonaOptions
from hermes_rl.backends.daytona_stream import DaytonaStream
from hermes_rl.backends.outpost.start import OutpostStart
from hermes_rl.backends.ownership import OWNER_LABEL
from hermes_rl.backends.shared_work import SharedWork
from hermes_rl.backends.shipment import Shipment
from hermes_rl.errors import ConfigError, ImageBuildFailed, SandboxError, SandboxGone, Unsupported
from hermes_rl.sandbox import Check, SandboxSpec

__all__ = ["DaytonaVendor", "examine"]

CALL_LIMIT_S = 15.0
LIST_LIMIT_S = 60.0
CREATE_LIMIT_S = 240.0
MARK_LIMIT_S = 60.0
CONNECTIONS = 1000
"""Of the HTTP pool: each sandbox holds a websocket, and a pool that is full would stall all."""
_ENDED = {"destroyed", "destroying", "stopped", "stopping", "archived", "archiving"}
_FAILED = {"error", "build_failed"}


class DaytonaVendor:
    """A :class:`~hermes_rl.backends.cloud_vendor.CloudVendor` over the Daytona SDK."""

    name = "daytona"
    python_hint = "Use an image that has python3."

    def __init__(self, options: DaytonaOptions) -> None:
        self._options = options
        self._client: Any = None
        self._readers = anyio.CapacityLimiter(2)

    async def open(self, tasks: TaskGroup) -> None:
        """Check that the key is accepted."""
        key = _key()
        if not key.ok:
            raise ConfigError(key.fix)
        self._shared: SharedWork[CloudImage] = SharedWork(tasks)
        config = DaytonaConfig(
            api_key=os.environ["DAYTONA_API_KEY"],
            api_url=os.environ.get("DAYTONA_API_URL"),
            target=self._options.target,
            connection_pool_maxsize=CONNECTIONS,
        )
        with TABLE.call("connect", limit_s=LIST_LIMIT_S):
            self._client = AsyncDaytona(config)
            query = ListSandboxesQuery(labels={OWNER_LABEL: "nobody"}, limit=1)
            async with aclosing(self._client.list(query)) as sandboxes:
                async for _ in sandboxes:
                    break

    async def close(self) -> None:
        """Close every connection."""
        if self._client is not None:
            with suppress(SandboxError), TABLE.call("connect", limit_s=CALL_LIMIT_S):
                await self._client.close()

    def _connected(self) -> Any:
        if self._client is None:
            raise ConfigError("The daytona backend is not connected.")
        return self._client

    def check(self, spec: SandboxSpec) -> None:
        """Refuse the image's own command, and limits on what comes from a snapshot."""
        if spec.image_command:
            raise Unsupported(
                "The daytona backend cannot start the image's own command.", backend=self.name
            )
        from_snapshot = (
            spec.image is None and spec.dockerfile_dir is None and self._options.snapshot
        )
        if from_snapshot and (spec.cpus or spec.memory_mb or spec.gpus):
            raise Unsupported(
                "A Daytona snapshot has its own limits: this task's cannot be set. Name an image "
                "instead of the backend option 'snapshot'.",
                backend=self.name,
            )

    # Images

    async def image_for(self, spec: SandboxSpec) -> CloudImage:
        """Return what to create from; Daytona builds an image with the first sandbox of it."""
        if spec.dockerfile_dir is not None:
            directory = spec.dockerfile_dir
            return await self._shared.get(str(directory), lambda: self._recipe(directory))
        tag = spec.image
        if tag is None and self._options.snapshot is None:
            tag = self._options.image
        if tag is not None:
            return CloudImage(tag, Image.base(tag).entrypoint(list(IDLE_COMMAND)))
        if self._options.snapshot is not None:
            return CloudImage(self._options.snapshot, None)
        raise ConfigError(
            "The daytona backend has no image for this task. Name one: --env.terminal_image IMAGE "
            "(or one of the backend options 'image' and 'snapshot')."
        )

    async def _recipe(self, directory: Path) -> CloudImage:
        def read() -> Image:
            image = Image.from_dockerfile(directory / "Dockerfile", strict_context=True)
            # The file may lack its last newline, and what is appended here gets none before it.
            return image.dockerfile_commands([""]).entrypoint(list(IDLE_COMMAND))

        try:
            image = await anyio.to_thread.run_sync(read, limiter=self._readers)
        except Exception as error:
            raise ImageBuildFailed(f"{directory} cannot be read: {error}") from error
        return CloudImage(str(directory), image)

    # Sandboxes

    async def create(self, order: Order) -> DaytonaBox:
        """Create a sandbox and wait until it has started."""
        with TABLE.call("create", limit_s=CREATE_LIMIT_S):
            sandbox = await self._connected().create(self._parameters(order), timeout=0)
        return DaytonaBox(sandbox)

    def _parameters(
        self, order: Order
    ) -> CreateSandboxFromImageParams | CreateSandboxFromSnapshotParams:
        spec = order.spec
        minutes = max(1, math.ceil(spec.lease_s / 60))
        common: dict[str, Any] = {
            "name": order.name,
            "labels": dict(order.labels),
            "os_user": self._options.user,
            "auto_stop_interval": min(self._options.auto_stop_minutes, minutes),
            "auto_delete_interval": 0,
            "ttl_minutes": minutes,
            "network_block_all": order.blocks_network,
            "target": self._options.target,
        }
        if order.image.value is None:
            return CreateSandboxFromSnapshotParams(snapshot=order.image.name, **common)
        return CreateSandboxFromImageParams(
            image=order.image.value, resources=self._resources(spec), **common
        )

    def _resources(self, spec: SandboxSpec) -> Resources:
        """Return the limits in Daytona's units: whole cores and GiB, rounded up."""
        return Resources(
            cpu=None if spec.cpus is None else math.ceil(spec.cpus),
            memory=None if spec.memory_mb is None else math.ceil(spec.memory_mb / 1024),
            gpu=spec.gpus or None,
            disk=self._options.disk_gb,
        )

    async def find(self, labels: Mapping[str, str]) -> AsyncIterator[BoxRecord]:
        """List sandboxes by labels, in every state but gone."""
        records: list[BoxRecord] = []
        with TABLE.call("use", limit_s=LIST_LIMIT_S):
            query = ListSandboxesQuery(labels=dict(labels) or None, limit=100)
            async with aclosing(self._connected().list(query)) as sandboxes:
                records = [_record(each) async for each in sandboxes]
        for record in records:
            if record.state not in ("destroyed", "destroying"):
                yield record

    async def delete(self, id: str) -> None:
        """Delete a sandbox and wait until it is accepted."""
        with suppress(SandboxGone), TABLE.call("use", limit_s=CALL_LIMIT_S, sandbox_id=id):
            sandbox = await self._connected().get(id)
            await sandbox.delete(timeout=CALL_LIMIT_S)

    async def leftovers(self, known: Sequence[str]) -> Sequence[BoxRecord]:
        """List the sandboxes that carry an owner."""
        skipped = set(known)
        return [
            record
            async for record in self.find({})
            if record.id not in skipped and OWNER_LABEL in record.labels
        ]


def _state(sandbox: Any) -> str:
    state = sandbox.state
    return str(getattr(state, "value", state) or "unknown")


def _record(sandbox: Any) -> BoxRecord:
    return BoxRecord(sandbox.id, dict(sandbox.labels), _state(sandbox), sandbox.snapshot or "")


class DaytonaBox:
    """A :class:`~hermes_rl.backends.cloud_vendor.CloudBox`: one Daytona sandbox."""

    def __init__(self, sandbox: Any) -> None:
        self.id: str = sandbox.id
        self._sandbox = sandbox
        self._stream: DaytonaStream | None = None

    async def start_outpost(self, start: OutpostStart | Shipment) -> CloudStream:
        """Open a terminal and let its shell become the outpost."""
        mark = f"hermes{secrets.token_hex(8)}x"
        stream = DaytonaStream(mark[::-1].encode())

        def connect(receive: Callable[[bytes], Awaitable[None]]) -> Awaitable[Any]:
            opened: Awaitable[Any] = self._sandbox.process.create_pty_session(
                mark, receive, pty_size=PtySize(cols=1000, rows=24)
            )
            return opened

        try:
            with TABLE.call("create", limit_s=CREATE_LIMIT_S, sandbox_id=self.id):
                await stream.open(connect)
                await stream.type(start.typed(mark))
                await stream.wait_begun(limit_s=MARK_LIMIT_S)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.release()
            raise
        await stream.send(start.typed_preamble)
        self._stream = stream
        return stream

    async def fate(self) -> Fate:
        """Ask for the sandbox's state; its outpost's exit code came with the stream's end."""
        try:
            with TABLE.call("use", limit_s=CALL_LIMIT_S, sandbox_id=self.id):
                await self._sandbox.refresh_data()
        except SandboxGone:
            return Fate(False, "removed", "it was deleted")
        state = _state(self._sandbox)
        if state in _ENDED:
            return Fate(False, "removed", f"it is {state}")
        if state in _FAILED:
            reason = getattr(self._sandbox, "error_reason", None) or state
            return Fate(False, detail=f"Daytona says: {reason}")
        code = self._stream.exit_code if self._stream is not None else None
        if code is not None and code > 128:
            detail = f"its supervisor was killed from inside (signal {code - 128})"
            return Fate(True, "killed", detail, by_agent=True)
        return Fate(True)

    async def touch(self) -> None:
        """Reset the idle timer."""
        with TABLE.call("use", limit_s=CALL_LIMIT_S, sandbox_id=self.id):
            await self._sandbox.refresh_activity()


def _key() -> Check:
    is_set = bool(os.environ.get("DAYTONA_API_KEY"))
    return Check(
        "daytona key",
        is_set,
        detail="" if is_set else "DAYTONA_API_KEY not set",
        fix="Set DAYTONA_API_KEY in the environment or in .env (app.daytona.io, Keys).",
    )


async def examine(options: DaytonaOptions) -> Sequence[Check]:
    """Return the doctor's checks; changes nothing."""
    sdk = Check("daytona", True, f"SDK {importlib.metadata.version('daytona')}")
    return [sdk, *await examine_account(DaytonaVendor(options), tokens=_key())]
