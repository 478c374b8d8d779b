"""Calls in threads: interrupts reach the call that is meant, and only that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from hermes_rl.legacy.in_worker.calls import Calls, pack_outcome, unpack_outcome
from hermes_rl.legacy.in_worker.frames import Kind
from hermes_rl.legacy.in_worker.hermes import Hermes, Outcome
from hermes_rl.legacy.in_worker.threads import BoundedThreads

WAIT_S = 10.0


class Tools(Hermes):
    """Two tools in the place of hermes-agent's, with its interrupt bits per thread.

    ``wait`` waits until its thread is interrupted, or for ever if it is deaf; ``bit`` tells
    whether its thread's bit is set.
    """

    def __init__(self) -> None:
        self.home = Path("/nowhere")
        self.bits: dict[int, threading.Event] = {}
        self.ended: list[str] = []
        self.begun: Queue[str] = Queue()
        self.release = threading.Event()

    def _bit(self, thread: int) -> threading.Event:
        return self.bits.setdefault(thread, threading.Event())

    def call(self, tool: str, arguments: dict[str, Any], *, task: str, call: str) -> Outcome:
        bit = self._bit(threading.get_ident())
        if tool == "wait":
            self.begun.put(task)
            (self.release if arguments.get("deaf") else bit).wait(WAIT_S)
        return Outcome("set" if bit.is_set() else "clear")

    def interrupt(self, thread: int) -> None:
        self._bit(thread).set()

    def clear_interrupt(self, thread: int) -> None:
        self._bit(thread).clear()

    def end(self, task: str) -> None:
        self.ended.append(task)


@pytest.fixture
def tools() -> Iterator[Tools]:
    made = Tools()
    yield made
    made.release.set()


class Harness:
    """Calls, and what they reported."""

    def __init__(self, tools: Tools, threads: int) -> None:
        self.is_stopped = False
        self.told: Queue[tuple[Kind, int, bytes]] = Queue()
        self.calls = Calls(tools, BoundedThreads(threads, "t"), lambda *each: self.told.put(each))

    def start(self, id: int, tool: str, task: str = "a", **arguments: Any) -> None:
        request = {"tool": tool, "arguments": arguments, "task": task, "call": str(id)}
        self.calls.start(id, request)

    def result(self) -> tuple[int, str]:
        kind, id, payload = self.told.get(timeout=WAIT_S)
        assert kind == Kind.RESULT
        return id, unpack_outcome(payload).content


@pytest.fixture
def harness(tools: Tools) -> Iterator[Callable[[int], Harness]]:
    made: list[Harness] = []

    def make(threads: int) -> Harness:
        made.append(Harness(tools, threads))
        return made[-1]

    yield make
    tools.release.set()
    for each in made:
        if not each.is_stopped:
            each.calls.stop()


def test_an_outcome_survives_the_wire() -> None:
    outcome = Outcome('{"text": "ü \\ud800"}', is_parts=False, error="no\nsuch")
    assert unpack_outcome(pack_outcome(outcome)) == outcome
    lone = unpack_outcome(pack_outcome(Outcome("\ud800")))
    assert lone.content == "?"


def test_a_cancelled_call_ends_and_its_thread_is_clean_for_the_next(
    tools: Tools, harness: Callable[[int], Harness]
) -> None:
    one = harness(1)
    one.start(1, "wait")
    assert tools.begun.get(timeout=WAIT_S) == "a"
    one.calls.cancel(1)
    assert one.result() == (1, "set")
    one.start(2, "bit")
    assert one.result() == (2, "clear")


def test_a_cancel_that_comes_too_late_harms_nobody(harness: Callable[[int], Harness]) -> None:
    one = harness(1)
    one.start(1, "bit")
    assert one.result() == (1, "clear")
    one.calls.cancel(1)
    one.calls.cancel(77)
    one.start(2, "bit")
    assert one.result() == (2, "clear")


def test_cancelling_one_call_does_not_disturb_another(
    tools: Tools, harness: Callable[[int], Harness]
) -> None:
    two = harness(2)
    for id in (1, 2):
        two.start(id, "wait", task=str(id))
        tools.begun.get(timeout=WAIT_S)
    two.calls.cancel(2)
    assert two.result() == (2, "set")
    assert two.told.empty()
    two.calls.cancel(1)
    assert two.result() == (1, "set")


def test_a_call_cancelled_before_it_began_never_runs(
    tools: Tools, harness: Callable[[int], Harness]
) -> None:
    one = harness(1)
    one.start(1, "wait")
    tools.begun.get(timeout=WAIT_S)
    one.start(2, "wait", task="b")
    one.calls.cancel(2)
    one.calls.cancel(1)
    assert one.result() == (1, "set")
    assert one.result() == (2, '{"error": "cancelled"}')
    assert tools.begun.empty()


def test_a_deaf_call_keeps_its_thread_until_it_returns(
    tools: Tools, harness: Callable[[int], Harness]
) -> None:
    one = harness(1)
    one.start(1, "wait", deaf=True)
    tools.begun.get(timeout=WAIT_S)
    one.calls.cancel(1)
    one.start(2, "bit")
    assert one.told.empty()
    tools.release.set()
    assert one.result() == (1, "set")
    assert one.result() == (2, "clear")


def test_the_end_of_a_rollout_frees_its_things_at_once_and_again_after_its_last_call(
    tools: Tools, harness: Callable[[int], Harness]
) -> None:
    two = harness(2)
    two.start(1, "wait", deaf=True)
    tools.begun.get(timeout=WAIT_S)
    two.calls.end(9, "a")
    assert two.told.get(timeout=WAIT_S)[:2] == (Kind.ENDED, 9)
    assert tools.ended == ["a"]
    tools.release.set()
    assert two.result()[0] == 1
    assert tools.ended == ["a", "a"]


def test_stopping_interrupts_what_runs_and_frees_every_rollout(
    tools: Tools, harness: Callable[[int], Harness]
) -> None:
    two = harness(2)
    two.start(1, "bit", task="a")
    assert two.result() == (1, "clear")
    two.start(2, "wait", task="b")
    tools.begun.get(timeout=WAIT_S)
    two.calls.stop()
    two.is_stopped = True
    assert two.result() == (2, "set")
    assert sorted(tools.ended) == ["a", "b"]
