import gc
from collections.abc import Iterator

import anyio
import pytest

from hermes_rl.garbage import no_full_collections, rare_full_collections


class Node:
    """An object in a cycle of its own: only the garbage collector frees it."""

    def __init__(self) -> None:
        self.me = self


class FullCollections:
    """Counts what the collector does."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        self.count += phase == "start" and info["generation"] == 2


@pytest.fixture
def full_collections() -> Iterator[FullCollections]:
    counter = FullCollections()
    gc.callbacks.append(counter)
    yield counter
    gc.callbacks.remove(counter)


@pytest.fixture
def eager() -> Iterator[None]:
    """Let a full collection start after a few hundred objects."""
    before = gc.get_threshold()
    gc.set_threshold(10, 1, 1)
    yield
    gc.set_threshold(*before)


def kept_and_dropped() -> list[Node]:
    kept = [Node() for _ in range(50_000)]
    for _ in range(50_000):
        Node()
    return kept


def nodes() -> int:
    return sum(type(each) is Node for each in gc.get_objects())


@pytest.mark.usefixtures("eager")
def test_no_full_collection_starts_inside_but_young_cycles_are_still_freed(
    full_collections: FullCollections,
) -> None:
    with no_full_collections():
        before = full_collections.count
        kept = kept_and_dropped()
        assert full_collections.count == before
        assert nodes() < len(kept) + 1000


@pytest.mark.usefixtures("eager")
def test_everything_is_as_before_afterwards_also_after_an_error() -> None:
    def work() -> None:
        with no_full_collections():
            assert gc.get_freeze_count() > 0
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert gc.get_threshold() == (10, 1, 1)
    assert gc.get_freeze_count() == 0


async def test_a_full_collection_is_made_every_so_often(full_collections: FullCollections) -> None:
    async with rare_full_collections(every_s=0.01):
        before = full_collections.count
        with anyio.fail_after(60):
            while full_collections.count < before + 3:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit(3)])
def test_what_is_raised_inside_comes_out_as_it_is(error: BaseException) -> None:
    async def work() -> None:
        async with rare_full_collections():
            raise error

    with pytest.raises(type(error)) as raised:
        anyio.run(work)
    assert raised.value is error


async def test_cancellation_passes_through() -> None:
    with anyio.move_on_after(0.01) as scope:
        async with rare_full_collections():
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert gc.get_freeze_count() == 0
