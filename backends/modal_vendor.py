"""Modal, as the cloud session sees it: the calls of its SDK, each with a deadline of ours.

The SDK waits without bound when the server throttles it, unless told otherwise; we tell it to
report at once, because one limiter for all creations knows better what to do (``CreationRate``).
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import anyio
import modal
import modal.config
from anyio.abc import TaskGroup

from hermes_rl.backends.cloud_inventory import examine_account
from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import IDLE_COMMAND, BoxRecord, CloudImage, Fate, Order
from hermes_rl.backends.modal_errors import TABLE
from hermes_rl.backends.modal_images import ModalImages
from hermes_rl.backends.modal_options import ModalOptions
from hermes_rl.backends.modal_stream import ModalStream
from hermes_rl.backends.outpost.start import (
    NO_PYTHON_EXIT_CODE,
    OutpostStart,
    PythonMissing,
)
from hermes_rl.backends.shipment import Shipment
from hermes_rl.errors import (
    BackendUnavailable,
    ConfigError,
    CreateError,
    SandboxError,
    SandboxGone,
    Unsupported,
)
from hermes_rl.sandbox import Check, SandboxSpec

__all__ = ["ModalVendor", "examine"]

CONNECT_LIMIT_S = 30.0
CREATE_LIMIT_S = 240.0
CALL_LIMIT_S = 15.0
LIST_LIMIT_S = 60.0
SHORTEST_LIFE_S = 10
LONGEST_LIFE_S = 86400
"""A sandbox's ``timeout`` at Modal: at most 24 hours."""
IDLE_TIMEOUT_S = 60
"""Modal ends a sandbox that has run no exec for so long: its outpost is gone."""
TAG_READERS = 16
_THROTTLE = "MODAL_MAX_THROTTLE_WAIT"


class ModalVendor:
    """A :class:`~hermes_rl.backends.cloud_vendor.CloudVendor` over the Modal SDK."""

    name = "modal"
    python_hint = "Use an image that has python3, or set the backend option add_python: '3.12'."

    def __init__(self, options: ModalOptions) -> None:
        self._options = options
        self._client: Any = None
        self._boxes: dict[str, Any] = {}
        self._sets_throttle = False

    async def open(self, tasks: TaskGroup) -> None:
        """Authenticate and look the app up."""
        tokens = _tokens()
        if not tokens.ok:
            raise ConfigError(tokens.fix)
        if _THROTTLE not in os.environ:
            os.environ[_THROTTLE] = "0"
            self._sets_throttle = True
        settings = modal.config.config
        with TABLE.call("connect", limit_s=CONNECT_LIMIT_S):
            self._client = await modal.Client.from_credentials.aio(
                settings["token_id"], settings["token_secret"]
            )
            self._app = await modal.App.lookup.aio(
                self._options.app,
                client=self._client,
                environment_name=self._options.environment,
                create_if_missing=True,
            )
        self._images = ModalImages(self._app, self._options, tasks)

    async def close(self) -> None:
        """Close every connection."""
        if self._sets_throttle:
            os.environ.pop(_THROTTLE, None)
        if self._client is not None:
            with suppress(SandboxError), TABLE.call("connect", limit_s=CALL_LIMIT_S):
                await self._client.close.aio()

    def check(self, spec: SandboxSpec) -> None:
        """Refuse a life longer than Modal gives, and the image's own command."""
        if spec.lease_s > LONGEST_LIFE_S:
            raise Unsupported(
                f"Modal sandboxes live at most {LONGEST_LIFE_S // 3600} hours; this task needs "
                f"{spec.lease_s / 3600:.1f}.",
                backend=self.name,
            )
        if spec.image_command:
            raise Unsupported(
                "The modal backend cannot start the image's own command.", backend=self.name
            )

    async def image_for(self, spec: SandboxSpec) -> CloudImage:
        """Return the spec's image, built."""
        return await self._images.image_for(spec)

    async def create(self, order: Order) -> ModalBox:
        """Create a sandbox; execs wait for it to run."""
        with TABLE.call("create", limit_s=CREATE_LIMIT_S):
            sandbox = await modal.Sandbox.create.aio(
                *IDLE_COMMAND, app=self._app, client=self._client, **self._arguments(order)
            )
        self._boxes[sandbox.object_id] = sandbox
        return ModalBox(sandbox)

    def _arguments(self, order: Order) -> dict[str, Any]:
        spec = order.spec
        return {
            "name": order.name,
            "tags": dict(order.labels),
            "image": order.image.value,
            "timeout": min(LONGEST_LIFE_S, max(SHORTEST_LIFE_S, math.ceil(spec.lease_s))),
            "idle_timeout": IDLE_TIMEOUT_S,
            "cpu": None if spec.cpus is None else (spec.cpus, spec.cpus),
            "memory": None if spec.memory_mb is None else (spec.memory_mb, spec.memory_mb),
            "gpu": f"{self._options.gpu}:{spec.gpus}" if spec.gpus else None,
            "region": self._options.region,
            "block_network": order.blocks_network,
        }

    async def find(self, labels: Mapping[str, str]) -> AsyncIterator[BoxRecord]:
        """List running sandboxes by tags."""
        listing = modal.Sandbox.list.aio(
            app_id=self._app.app_id, tags=dict(labels), client=self._client
        )
        records = []
        with TABLE.call("use", limit_s=LIST_LIMIT_S):
            async with aclosing(listing) as sandboxes:
                records = [BoxRecord(each.object_id, labels) async for each in sandboxes]
        for record in records:
            yield record

    async def delete(self, id: str) -> None:
        """Terminate a sandbox."""
        try:
            with TABLE.call("use", limit_s=CALL_LIMIT_S, sandbox_id=id):
                sandbox = self._boxes.get(id)
                if sandbox is None:
                    sandbox = await modal.Sandbox.from_id.aio(id, client=self._client)
                await sandbox.terminate.aio()
                await sandbox.detach.aio()
        except SandboxGone:
            pass  # which is what was wanted
        self._boxes.pop(id, None)

    async def leftovers(self, known: Sequence[str]) -> Sequence[BoxRecord]:
        """List the app's sandboxes with their tags, which take a call each."""
        ids = [record.id async for record in self.find({}) if record.id not in set(known)]
        limiter = anyio.CapacityLimiter(TAG_READERS)
        records: list[BoxRecord] = []
        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(self._add_tagged, id, records, limiter)
        return records

    async def _add_tagged(
        self, id: str, records: list[BoxRecord], limiter: anyio.CapacityLimiter
    ) -> None:
        async with limiter:
            with suppress(SandboxError), TABLE.call("use", limit_s=CALL_LIMIT_S, sandbox_id=id):
                sandbox = await modal.Sandbox.from_id.aio(id, client=self._client)
                records.append(BoxRecord(id, await sandbox.get_tags.aio()))


class ModalBox:
    """A :class:`~hermes_rl.backends.cloud_vendor.CloudBox`: one Modal sandbox."""

    def __init__(self, sandbox: Any) -> None:
        self.id: str = sandbox.object_id
        self._sandbox = sandbox
        self._process: Any = None

    async def start_outpost(self, start: OutpostStart | Shipment) -> CloudStream:
        """Start the outpost as one exec; the SDK waits until the sandbox runs."""
        with TABLE.call("create", limit_s=CREATE_LIMIT_S, sandbox_id=self.id):
            self._process = await self._sandbox.exec.aio(*start.argv(), text=False)
        stream = ModalStream(self._process)
        try:
            if await stream.begin(start.preamble):
                return stream
        except ConnectionResetError as error:
            raise BackendUnavailable(str(error), backend="modal", sandbox_id=self.id) from error
        raise await self._why_not_started()

    async def _why_not_started(self) -> CreateError | PythonMissing:
        with TABLE.call("create", limit_s=CALL_LIMIT_S, sandbox_id=self.id):
            code = await self._process.wait.aio()
            if code == NO_PYTHON_EXIT_CODE:
                return PythonMissing()
            text = (await self._process.stderr.read.aio()).decode("utf-8", "replace").strip()
        last = text.splitlines()[-1] if text else f"exit code {code}"
        return CreateError(
            f"The sandbox's supervisor does not start: {last}", backend="modal", sandbox_id=self.id
        )

    async def fate(self) -> Fate:
        """Ask for the sandbox's return code, then for its outpost's."""
        with TABLE.call("use", limit_s=CALL_LIMIT_S, sandbox_id=self.id):
            code = await self._sandbox.poll.aio()
            if code is not None:
                return _sandbox_fate(code)
            return _outpost_fate(await self._process.poll.aio())

    async def touch(self) -> None:
        """Nothing to do: a running exec is use."""


def _sandbox_fate(code: int) -> Fate:
    if code == 124:
        return Fate(False, "expired", "its lease is over")
    if code == 137:
        return Fate(False, "removed", "it was terminated")
    return Fate(False, detail=f"it ended with exit code {code}")


def _outpost_fate(code: int | None) -> Fate:
    """A supervisor that a signal ended was killed by something inside: nothing else can."""
    if code is not None and code > 128:
        detail = f"its supervisor was killed from inside (signal {code - 128})"
        return Fate(True, "killed", detail, by_agent=True)
    return Fate(True)


def _tokens() -> Check:
    settings = modal.config.config
    missing = [
        f"MODAL_{name.upper()}" for name in ("token_id", "token_secret") if not settings[name]
    ]
    return Check(
        "modal tokens",
        not missing,
        detail="" if not missing else f"{' and '.join(missing)} not set",
        fix="Set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET in the environment or in .env "
        "(modal token new makes a pair).",
    )


async def examine(options: ModalOptions) -> Sequence[Check]:
    """Return the doctor's checks; changes nothing but that the app exists."""
    sdk = Check("modal", True, f"SDK {modal.__version__}")
    return [sdk, *await examine_account(ModalVendor(options), tokens=_tokens())]
