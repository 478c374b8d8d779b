"""A cloud backend while it is connected: makes sandboxes, keeps them alive, removes them all.

Creating is a *flight* in the backend's own task group: a cancelled caller waits a short grace for
the handle and gives up then, but the flight goes on and removes what it gets. What a flight made
without learning its id is found by its label. So nothing depends on the caller, and what even we
cannot do any more (a killed engine, a vendor out of reach) the lifetime given at creation does.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.cloud_outposts import CloudOutposts
from hermes_rl.backends.cloud_sandbox import CloudSandbox
from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import BOX_LABEL, CloudBox, CloudImage, CloudVendor, Order
from hermes_rl.backends.creation_rate import CreationRate
from hermes_rl.backends.outpost.start import OutpostStart, outpost_options
from hermes_rl.backends.ownership import RUN_LABEL, Owner, judge, labels_for
from hermes_rl.backends.regular_sweep import RegularSweep
from hermes_rl.backends.start_deadline import coming_up, too_slow
from hermes_rl.errors import (
    CreateError,
    HermesRLError,
    RateLimited,
    SandboxError,
)
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, SandboxSpec

__all__ = ["CloudSession"]

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 60.0
CREATE_LIMIT_S = 300.0
"""Longest creation, from the vendor's answer to the request until commands can run."""
CANCEL_GRACE_S = 8.0
"""How long a cancelled caller waits for the sandbox it asked for to be there and gone."""
RATE_PATIENCE_S = 900.0
"""Refusals for asking too often are waited out this long before a creation fails."""
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0
REMOVE_LIMIT_S = 20.0
CLOSING_LIMIT_S = 60.0
"""For the sandboxes that are left at the end of a run, all together."""
TOUCH_INTERVAL_S = 45.0
TOUCH_LIMIT_S = 15.0
TOUCHES = 16
SILENCE_S = 300.0
"""An outpost that hears nothing from us for so long ends: we are dead or cut off."""
FILE_THREADS = 4


class _Flight:
    """One creation in progress."""

    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.box: CloudBox | None = None
        self.error: HermesRLError | None = None
        self.is_abandoned = False

    def claim(self) -> CloudBox:
        if self.box is None:
            raise (
                copy.copy(self.error) if self.error else CreateError("The creation was cancelled.")
            )
        return self.box


class CloudSession:
    """One connection to a vendor and the sandboxes made over it.

    Args:
        settings: Of the backend.
        vendor: The cloud.
        limits: How much is done at once.
        capabilities: What the backend offers.
        rate: How fast sandboxes may be asked for.
    """

    def __init__(
        self,
        settings: BackendSettings,
        vendor: CloudVendor,
        *,
        limits: BackendLimits,
        capabilities: frozenset[Capability],
        rate: CreationRate,
    ) -> None:
        self._settings = settings
        self._vendor = vendor
        self._rate = rate
        self._capabilities = capabilities
        self._admission = Admission(starting=limits.starting or 1, removing=limits.removing or 1)
        self._transfers = anyio.Semaphore(limits.transfers or 1)
        self._threads = anyio.CapacityLimiter(FILE_THREADS)
        self._owner = Owner.current()
        self._sandboxes: dict[str, CloudSandbox] = {}
        self._flights: set[_Flight] = set()
        self._sweeps = RegularSweep(self._remove_abandoned, backend=vendor.name)
        self._left: set[str] = set()
        self._stack = AsyncExitStack()

    # Life

    async def open(self) -> None:
        """Connect and start the background work.

        Raises:
            ConfigError: A token is missing.
            BackendUnavailable: The vendor cannot be reached.
        """
        try:
            self._tasks: TaskGroup = await self._stack.enter_async_context(
                anyio.create_task_group()
            )
            self._stack.callback(self._tasks.cancel_scope.cancel)
            self._stack.push_async_callback(self._disconnect)
            self._outposts = CloudOutposts(
                self._vendor, cache_dir=self._settings.cache_dir, tasks=self._tasks
            )
            await self._vendor.open(self._tasks)
            self._tasks.start_soon(self._sweeps.run)
            self._tasks.start_soon(self._keep_alive)
        except BaseException:
            await self._stack.aclose()
            raise

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._vendor.close()

    async def close(self) -> None:
        """Remove every sandbox of this run, then disconnect."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_LIMIT_S) as scope:
            for flight in self._flights:
                flight.is_abandoned = True
            await _all(sandbox.close for sandbox in list(self._sandboxes.values()))
            await _all(flight.landed.wait for flight in list(self._flights))
            await self._remove_run()
        if scope.cancelled_caught or self._left:
            logger.warning(
                "%s: %d sandboxes could not be removed; they end at their deadline at the latest",
                self._vendor.name,
                len(self._left) or len(self._sandboxes),
            )
        await self._stack.aclose()

    async def _remove_run(self) -> None:
        """Remove whatever carries this run's label, and what resisted before."""
        doomed = set(self._left)
        try:
            async for record in self._vendor.find({RUN_LABEL: self._settings.run_id}):
                doomed.add(record.id)
        except SandboxError as error:
            logger.warning("%s: the run's sandboxes cannot be listed: %s", self._vendor.name, error)
        await self._remove_all(doomed)

    async def _remove_all(self, ids: set[str]) -> None:
        async with anyio.create_task_group() as tasks:
            for id in ids:
                tasks.start_soon(self.remove, id)

    async def remove(self, id: str) -> None:
        """Remove a sandbox; what cannot be removed now is tried again at every sweep."""
        self._left.add(id)
        try:
            with anyio.fail_after(REMOVE_LIMIT_S):
                async with self._admission.removal():
                    await self._vendor.delete(id)
        except (SandboxError, TimeoutError) as error:
            logger.warning("%s: sandbox %s is not removed yet: %s", self._vendor.name, id, error)
        else:
            self._left.discard(id)
        self._sandboxes.pop(id, None)

    # Sweeping

    async def sweep(self) -> list[str]:
        """Remove what dead owners or passed deadlines left; return all that was since last asked.

        Raises:
            BackendUnavailable: The vendor cannot be reached.
        """
        return await self._sweeps.now()

    async def _remove_abandoned(self) -> list[str]:
        records = await self._vendor.leftovers(list(self._sandboxes))
        now_s = time.time()
        doomed = [
            record.id
            for record in records
            if judge(record.labels, seen_from=self._owner, now_s=now_s) != "keep"
        ]
        await self._remove_all({*doomed, *self._left})
        return [id for id in doomed if id not in self._left]

    # Creating

    async def create(self, spec: SandboxSpec) -> CloudSandbox:
        """Start a sandbox; a cancelled caller leaves nothing.

        Raises:
            CreateError: See its subclasses.
            Unsupported: This cloud can never run it.
        """
        self._vendor.check(spec)
        image = await self._image_for(spec)
        async with self._admission.start():
            box = await self._board(spec, image)
            deadline_s = time.monotonic() + spec.lease_s
            try:
                with anyio.fail_after(spec.start_timeout_s):
                    sandbox = await self._boot(spec, box, image, deadline_s)
            except TimeoutError:
                raise too_slow(spec, backend=self._vendor.name) from None
        up_by_s = anyio.current_time() + spec.start_timeout_s
        async with coming_up(sandbox, spec, backend=self._vendor.name, deadline_s=up_by_s):
            await sandbox.ready(spec, timeout_s=HELLO_TIMEOUT_S)
        return sandbox

    async def _image_for(self, spec: SandboxSpec) -> CloudImage:
        try:
            with anyio.fail_after(spec.build_timeout_s):
                return await self._vendor.image_for(spec)
        except TimeoutError:
            what = spec.dockerfile_dir or spec.image or "the default"
            raise CreateError(
                f"Image {what} was not ready within {spec.build_timeout_s:g} s.",
                backend=self._vendor.name,
            ) from None

    async def _board(self, spec: SandboxSpec, image: CloudImage) -> CloudBox:
        """Ask for a sandbox until there is one; refusals for haste are waited out."""
        backoff_s = FIRST_BACKOFF_S
        give_up_at_s = anyio.current_time() + RATE_PATIENCE_S
        while True:
            await self._rate.take()
            flight = _Flight()
            self._flights.add(flight)
            self._tasks.start_soon(self._fly, flight, self._order(spec, image))
            await self._await_landing(flight, spec)
            refusal = flight.error
            if not isinstance(refusal, RateLimited) or anyio.current_time() >= give_up_at_s:
                return flight.claim()
            self._rate.refused(refusal.retry_after_s or backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _await_landing(self, flight: _Flight, spec: SandboxSpec) -> None:
        try:
            with anyio.fail_after(spec.start_timeout_s):
                await flight.landed.wait()
        except BaseException as error:
            flight.is_abandoned = True
            with anyio.move_on_after(CANCEL_GRACE_S, shield=True):
                await flight.landed.wait()
            if flight.box is not None:
                await self._remove_shielded(flight.box.id)
            if isinstance(error, TimeoutError):
                raise too_slow(spec, backend=self._vendor.name) from None
            raise

    async def _remove_shielded(self, id: str) -> None:
        with anyio.CancelScope(shield=True):
            await self.remove(id)

    async def _fly(self, flight: _Flight, order: Order) -> None:
        """Create; whatever happens, nothing is left that nobody knows of."""
        try:
            with anyio.fail_after(CREATE_LIMIT_S):
                box = await self._vendor.create(order)
            if flight.is_abandoned:
                await self._remove_shielded(box.id)
            else:
                flight.box = box
        except HermesRLError as error:
            flight.error = error
            if not isinstance(error, RateLimited):
                await self._remove_unseen(order)
        except Exception as error:  # the boundary: one creation must not end the backend
            flight.error = CreateError(f"Creating a sandbox failed: {error!r}")
            await self._remove_unseen(order)
        finally:
            self._flights.discard(flight)
            flight.landed.set()

    async def _remove_unseen(self, order: Order) -> None:
        """Remove what a failed creation may have made without telling us its id."""
        with suppress(SandboxError):
            async for record in self._vendor.find({BOX_LABEL: order.name}):
                await self.remove(record.id)

    def _order(self, spec: SandboxSpec, image: CloudImage) -> Order:
        name = f"hermes-{secrets.token_hex(12)}"
        network = spec.network or self._settings.network
        labels: Mapping[str, str] = labels_for(
            self._settings.run_id,
            owner=self._owner,
            now_s=time.time(),
            lease_s=spec.lease_s,
            extra={**spec.labels, BOX_LABEL: name},
        )
        return Order(
            name=name, spec=spec, image=image, labels=labels, blocks_network=network == "none"
        )

    async def _boot(
        self, spec: SandboxSpec, box: CloudBox, image: CloudImage, deadline_s: float
    ) -> CloudSandbox:
        """Start the outpost and wait until it speaks."""
        sandbox: CloudSandbox | None = None
        try:
            start = self._starter(spec, box, image, deadline_s)
            sandbox = self._sandbox(box, await start(), deadline_s, restart=start)
            await sandbox.ready(SandboxSpec(), timeout_s=HELLO_TIMEOUT_S)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await (sandbox.close() if sandbox else self.remove(box.id))
            raise
        hello = sandbox.greeted()
        if hello is not None and hello.uid != 0:
            sandbox.capabilities -= {Capability.USERS}
        return sandbox

    def _starter(
        self, spec: SandboxSpec, box: CloudBox, image: CloudImage, deadline_s: float
    ) -> Callable[[], Awaitable[CloudStream]]:
        """Return what starts an outpost in the sandbox, the first or another one."""
        return lambda: self._outposts.start(box, self._start(spec, deadline_s), image=image.name)

    def _start(self, spec: SandboxSpec, deadline_s: float) -> OutpostStart:
        options = outpost_options(
            lease_s=max(1.0, deadline_s - time.monotonic()),
            silence_s=SILENCE_S,
            env=spec.env,
            user=spec.user,
        )
        try:
            return OutpostStart.of(options, workdir=spec.workdir)
        except ValueError as error:
            raise CreateError(f"The sandbox cannot be started: {error}.") from error

    def _sandbox(
        self,
        box: CloudBox,
        stream: CloudStream,
        deadline_s: float,
        *,
        restart: Callable[[], Awaitable[CloudStream]],
    ) -> CloudSandbox:
        sandbox = CloudSandbox(
            box=box,
            backend=self._vendor.name,
            remove=self.remove,
            stream=stream,
            capabilities=self._capabilities,
            deadline_s=deadline_s,
            restart=restart,
            transfers=self._transfers,
            threads=self._threads,
        )
        self._sandboxes[box.id] = sandbox
        self._tasks.start_soon(sandbox.serve)
        return sandbox

    async def _keep_alive(self) -> None:
        """Let every outpost hear from us, and the vendor see that each sandbox is in use."""
        limiter = anyio.CapacityLimiter(TOUCHES)
        while True:
            await anyio.sleep(TOUCH_INTERVAL_S)
            async with anyio.create_task_group() as tasks:
                for sandbox in list(self._sandboxes.values()):
                    tasks.start_soon(self._touch, sandbox, limiter)

    async def _touch(self, sandbox: CloudSandbox, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            if sandbox.is_closing or sandbox.is_lost:
                return
            with suppress(SandboxError):
                await sandbox.box.touch()
            with suppress(SandboxError):
                await sandbox.ping(timeout_s=TOUCH_LIMIT_S)


async def _all(calls: Iterable[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)
