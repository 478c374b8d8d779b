"""Files out of a container through the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hermes_rl.backends.docker_archive import window


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def _endless(read: list[int]) -> AsyncIterator[bytes]:
    while True:
        read.append(1000)
        yield bytes(1000)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
async def test_what_follows_the_offset_is_returned(size: int) -> None:
    data = bytes(range(50))
    assert await window(_pieces(data, size), offset=0, max_bytes=50) == data
    assert await window(_pieces(data, size), offset=44, max_bytes=6) == data[44:]
    assert await window(_pieces(data, size), offset=60, max_bytes=6) == b""
    assert await window(_pieces(data, size), offset=43, max_bytes=6) is None


async def test_no_more_is_read_than_may_be_kept() -> None:
    read: list[int] = []
    assert await window(_endless(read), offset=5_000, max_bytes=3_000) is None
    assert sum(read) == 9_000
