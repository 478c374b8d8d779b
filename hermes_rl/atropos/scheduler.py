"""``serve``: rollouts for a trainer, through the trajectory API, until it has enough.

One task group owns everything. A unit of work is a group; its rollouts run side by side. Rules:

* A full queue pauses admission; nothing in flight is ever killed for it. At most
  ``max_batches_offpolicy`` batches are queued or in flight.
* ``eval_handling``: STOP_TRAIN admits no group while an evaluation runs (groups in flight go on
  and are sent), LIMIT_TRAIN admits ``eval_limit_ratio`` of the workers, NONE changes nothing.
* A finished group is sent shielded; stopping waits for sends, bounded by :data:`SEND_GRACE_S`.
  What could not be sent by then is counted.
* After the trainer's last step, groups in flight are of no use to anyone: they are torn down and
  counted. An evaluation that the last step began runs to its end.
* A group that failed goes to the end of the queue of items, at most :data:`TRIES_PER_ITEM`
  times, with a growing pause while nothing succeeds: a broken model server is not hammered.
* The API restarting is met by registering again; see :mod:`hermes_rl.atropos.trajectory_api`.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.group_members import GroupFailed
from hermes_rl.atropos.trajectory_api import (
    APIRefused,
    APIRestarted,
    APIStatus,
    APIUnavailable,
    TrajectoryAPI,
)
from hermes_rl.errors import ConfigError, EngineClosed
from hermes_rl.types import JSONObject

__all__ = ["Scheduler", "SchedulerCounters"]

POLL_S = 0.5
"""Between looks at the queue of the API; also how long an item that was not there is waited for."""
SEND_GRACE_S = 10.0
"""What sends may still take once the run is being stopped; the command ends 14 s after a signal."""
TRIES_PER_ITEM = 3
DEFAULT_TOKEN_LENGTH = 2048
"""Atropos' own default, where neither the configuration nor the model says."""
LONGEST_PAUSE_S = 30.0

_log = logging.getLogger("hermes_rl.atropos")


@dataclass(slots=True)
class SchedulerCounters:
    """What became of the groups."""

    admitted: int = 0
    sent: int = 0
    failed: int = 0
    """Groups that failed, retried or not."""
    given_up: int = 0
    """Items that failed :data:`TRIES_PER_ITEM` times."""
    unsent: int = 0
    """Finished groups that found no API before the run had to end."""
    unneeded: int = 0
    """Groups in flight after the last step."""
    same_scores: int = 0
    too_long: int = 0
    refused: int = 0
    timed_out: int = 0
    evaluations: int = 0
    registrations: int = 0


@dataclass(slots=True)
class _Work:
    item: Any
    tries: int = 0


class Scheduler:
    """Runs one environment against one trajectory API until the trainer's last step.

    Attributes:
        counters: What became of the groups so far.
    """

    def __init__(self, env: HermesAgentBaseEnv, api: TrajectoryAPI) -> None:
        self.counters = SchedulerCounters()
        self._env = env
        self._api = api
        self._queue: deque[_Work] = deque()
        self._running = 0
        self._total_steps = env.config.total_steps
        self._status = APIStatus(0, 0, 0, 1.0, 1.0, 0)
        self._sent_at_look = 0
        self._is_evaluating = False
        self._failures_in_a_row = 0
        self._registering = anyio.Lock()
        self._stopping = anyio.Event()
        self._stoppable: anyio.CancelScope | None = None
        self._in_flight: set[anyio.CancelScope] = set()
        self._sending: set[anyio.CancelScope] = set()
        self._fatal: Exception | None = None

    def stop(self) -> None:
        """End the run: rollouts in flight are torn down, finished groups are still sent."""
        self._stopping.set()
        if self._stoppable is not None:
            self._stoppable.cancel()
        for sending in self._sending:
            _bound(sending)

    async def connect(self) -> None:
        """Register with the API; waits until the trainer has pulled once, or until :meth:`stop`.

        Raises:
            APIUnavailable: The trajectory API stayed away.
            ConfigError: The trainer's settings do not fit this environment's.
        """
        with anyio.CancelScope() as self._stoppable:
            if not self._stopping.is_set():
                await self._register()

    async def run(self) -> None:
        """Serve until the last step, or until :meth:`stop`; connects if that was not done yet.

        Raises:
            APIUnavailable: The trajectory API stayed away.
            HermesRLError: What stops every rollout: a wrong key, a wrong configuration.
        """
        if not self.counters.registrations:
            await self.connect()
        try:
            async with anyio.create_task_group() as tasks:
                self._stoppable = tasks.cancel_scope
                if not self._stopping.is_set():
                    await self._loop(tasks)
        finally:
            with anyio.CancelScope(shield=True):
                await self._api.disconnect()
        if self._fatal is not None:
            raise self._fatal

    async def _register(self) -> None:
        env, config = self._env, self._env.config
        registration = await self._api.register(
            name=config.wandb_name or env.name or type(env).__name__,
            group_size=config.group_size,
            max_token_length=self._sequence_budget(),
            weight=config.inference_weight,
            min_batch_allocation=config.min_batch_allocation,
        )
        self.counters.registrations += 1
        batch_size, max_token_len = await self._api.info()
        if batch_size != -1:
            config.batch_size = batch_size
        if batch_size % config.group_size:
            raise ConfigError(
                f"The trainer's batch_size {batch_size} is no multiple of group_size "
                f"{config.group_size}: the trajectory API could never form a batch."
            )
        env.max_token_len = max_token_len
        if max_token_len > 0:
            config.max_token_length = min(self._sequence_budget(), max_token_len)
        env.wandb_prepend = registration.wandb_name
        env.checkpoint_dir = registration.checkpoint_dir
        env.checkpoint_interval = registration.checkpoint_interval
        env.wandb_group, env.wandb_project = await self._api.wandb_info()
        if self._total_steps == -1:
            self._total_steps = registration.num_steps
        # A trainer that registered anew goes on from its own checkpoint: its step counts.
        env.curr_step = registration.starting_step
        if self.counters.registrations == 1 and env.curr_step > 0:
            env.load_checkpoint()

    def _sequence_budget(self) -> int:
        """Return the tokens of one sequence: as configured, else the model's context."""
        configured: int | None = self._env.config.max_token_length
        model = self._env.server.model
        context = model.context_tokens if model is not None else None
        return configured or context or DEFAULT_TOKEN_LENGTH

    async def _register_again(self, seen: int) -> None:
        """Register with a restarted API, once however many senders noticed."""
        async with self._registering:
            if self.counters.registrations != seen:
                return
            _log.warning("The trajectory API was restarted; registering again.")
            await self._register()
            if self._env.config.resend_on_restart:
                # Restarted once more meanwhile: the next request notices that again.
                with contextlib.suppress(APIRestarted):
                    await self._api.resend()

    async def _loop(self, tasks: TaskGroup) -> None:
        try:
            while not self._is_done():
                await self._look(tasks)
                if self._is_done():
                    break
                admitted = await self._admit(tasks) if self._has_room() else False
                if not admitted:
                    with anyio.move_on_after(POLL_S):
                        await self._stopping.wait()
        except Exception as error:  # The boundary of the run: finished groups are still sent.
            self._give_up_run(error)
        else:
            for group in self._in_flight:
                group.cancel()
        # Leaving the task group waits for the shielded sends and for an evaluation.

    def _is_done(self) -> bool:
        return self._env.curr_step >= self._total_steps or self._fatal is not None

    async def _look(self, tasks: TaskGroup) -> None:
        seen, sent = self.counters.registrations, self.counters.sent
        try:
            self._status = await self._api.status()
            self._sent_at_look = sent
        except APIRestarted:
            await self._register_again(seen)
            return
        before, now = self._env.curr_step, self._status.current_step
        if now <= before:
            return
        self._env.curr_step = now
        every = self._env.config.steps_per_eval
        if every > 0 and now // every > before // every and not self._is_evaluating:
            self._is_evaluating = True
            tasks.start_soon(self._evaluate)
        every = self._env.checkpoint_interval
        if every > 0 and now // every > before // every:
            self._env.save_checkpoint(now)
        await self._env.log_step()

    def _has_room(self) -> bool:
        config = self._env.config
        workers = config.max_num_workers
        if workers == -1:
            workers = config.max_num_workers_per_node * len(self._env.server_configs)
        if self._is_evaluating:
            handling = str(getattr(config.eval_handling, "value", config.eval_handling))
            if handling == "STOP_TRAIN":
                return False
            if handling == "LIMIT_TRAIN":
                workers = max(1, int(workers * config.eval_limit_ratio))
        if self._running >= workers or config.batch_size < 1:
            return False
        share = self._status.unallocated_fraction + (config.min_batch_allocation or 0.0)
        wanted = max(1, int(config.batch_size * min(share, 1.0) / config.group_size))
        # What was sent since the queue was looked at may not have been counted there yet.
        unseen = self.counters.sent - self._sent_at_look
        ahead = self._status.self_queue_size + unseen + self._running
        return bool(ahead < config.max_batches_offpolicy * wanted)

    async def _admit(self, tasks: TaskGroup) -> bool:
        """Start one group; False if there is no item now."""
        if self._failures_in_a_row:
            pause = min(LONGEST_PAUSE_S, POLL_S * 2.0**self._failures_in_a_row)
            with anyio.move_on_after(pause):
                await self._stopping.wait()
        work = self._queue.popleft() if self._queue else None
        if work is None:
            item = await self._env.get_next_item()
            if item is None:
                return False
            work = _Work(item)
        self.counters.admitted += 1
        self._running += 1
        tasks.start_soon(self._group, work)
        return True

    async def _group(self, work: _Work) -> None:
        try:
            with anyio.CancelScope() as scope:
                self._in_flight.add(scope)
                await self._collect_and_send(work)
            self.counters.unneeded += scope.cancelled_caught
        except (EngineClosed, ConfigError, APIUnavailable) as error:
            self._give_up_run(error)
        except Exception as error:
            if getattr(error, "stops_run", False):
                self._give_up_run(error)
            else:
                self._failed(work, error)
        finally:
            self._in_flight.discard(scope)
            self._running -= 1

    def _give_up_run(self, error: Exception) -> None:
        self._fatal = self._fatal or error
        self.stop()

    def _failed(self, work: _Work, error: Exception) -> None:
        self.counters.failed += 1
        self._failures_in_a_row += 1
        level = logging.WARNING if isinstance(error, GroupFailed) else logging.ERROR
        _log.log(level, "A group failed: %s: %s", type(error).__name__, error)
        work.tries += 1
        if work.tries < TRIES_PER_ITEM:
            self._queue.append(work)
        else:
            self.counters.given_up += 1

    async def _collect_and_send(self, work: _Work) -> None:
        group, backlog = await self._collect(work.item)
        self._queue.extend(_Work(item) for item in backlog)
        try:
            with anyio.CancelScope(shield=True) as sending:
                self._sending.add(sending)
                if self._stopping.is_set():
                    _bound(sending)
                for one in group if isinstance(group, list) else [group]:
                    if one is not None:
                        await self._deliver(await self._env.postprocessed(one))
        except APIUnavailable:
            self.counters.unsent += 1
            raise
        finally:
            self._sending.discard(sending)
        if sending.cancelled_caught:
            self.counters.unsent += 1
            _log.error("A finished group was not sent: the run ended before the API took it.")
        self._failures_in_a_row = 0

    async def _collect(self, item: Any) -> tuple[Any, list[Any]]:
        config = self._env.config
        limit_s = config.worker_timeout if "worker_timeout" in config.model_fields_set else 0
        with anyio.move_on_after(limit_s if limit_s > 0 else float("inf")) as scope:
            return await self._env.collect_trajectories(item)
        if scope.cancelled_caught:
            self.counters.timed_out += 1
        raise GroupFailed(f"The group took longer than worker_timeout ({limit_s:g} s).")

    async def _deliver(self, group: JSONObject | None) -> None:
        if not group or not self._is_worth_sending(group):
            return
        await self._env.note_group(group)
        sent = self._wire_form(group)
        while True:
            seen = self.counters.registrations
            try:
                await self._api.send(sent, step=self._env.curr_step)
            except APIRestarted:
                await self._register_again(seen)
                continue
            except APIRefused as error:
                self.counters.refused += 1
                _log.error("A group was refused: %s", error)
                return
            self.counters.sent += 1
            self._env.items_sent_this_step += 1
            return

    def _is_worth_sending(self, group: Mapping[str, Any]) -> bool:
        config = self._env.config
        if config.ensure_scores_are_not_same and len(set(group["scores"])) == 1:
            self.counters.same_scores += 1
            return False
        longest = max(map(len, group["tokens"]), default=0)
        if 0 < self._env.max_token_len < longest:
            self.counters.too_long += 1
            return False
        return True

    def _wire_form(self, group: JSONObject) -> JSONObject:
        """Return the group without what the API does not know or the trainer did not ask for."""
        unwanted = {"tools"} if self._env.config.include_messages else {"tools", "messages"}
        return {key: value for key, value in group.items() if key not in unwanted}

    async def _evaluate(self) -> None:
        try:
            await self._env.evaluate()
            self.counters.evaluations += 1
        except Exception as error:
            if getattr(error, "stops_run", False):
                self._give_up_run(error)
            _log.error("The evaluation failed: %s: %s", type(error).__name__, error)
        finally:
            self._is_evaluating = False


def _bound(sending: anyio.CancelScope) -> None:
    """Let a send take no longer than the grace from now."""
    sending.deadline = min(sending.deadline, anyio.current_time() + SEND_GRACE_S)
