"""An idle event loop, to tell the machine's own lag from ours: prints the lag's p99 in ms.

python idle_loop.py SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time

TICK_S = 0.01


async def lags_ms(duration_s: float) -> list[float]:
    """Sleep in short ticks; by how much each was late."""
    late: list[float] = []
    end_s = time.perf_counter() + duration_s
    while (start_s := time.perf_counter()) < end_s:
        await asyncio.sleep(TICK_S)
        late.append((time.perf_counter() - start_s - TICK_S) * 1000)
    return late


def p99(values: list[float]) -> float:
    """The value that 1 % exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * 99 // 100)]


if __name__ == "__main__":
    print(p99(asyncio.run(lags_ms(float(sys.argv[1])))))
