"""An idle event loop, to tell the machine's own lag from ours: prints the lag's p99 in ms.

python idle_loop.py SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

TICK_S = 0.01


async def ticks() -> AsyncGenerator[float, None]:
    """Sleep in short ticks for ever; by how many ms each was late."""
    while True:
        start_s = time.perf_counter()
        await asyncio.sleep(TICK_S)
        yield (time.perf_counter() - start_s - TICK_S) * 1000


async def lags_ms(duration_s: float) -> list[float]:
    """The lateness of each tick over so many seconds."""
    late: list[float] = []
    end_s = time.perf_counter() + duration_s
    async with aclosing(ticks()) as lateness:
        async for late_ms in lateness:
            late.append(late_ms)
            if time.perf_counter() >= end_s:
                break
    return late


def p99(values: list[float]) -> float:
    """The value that 1 % exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * 99 // 100)]


if __name__ == "__main__":
    print(p99(asyncio.run(lags_ms(float(sys.argv[1])))))
