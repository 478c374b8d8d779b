"""The most commands that this machine's cores start and wait for, with nothing around them.

python bare_spawns.py COUNT   prints commands per second

Two processes per core, each of which starts ``bash -c 'echo hi'``, reads its output and waits for
it, one after the other: no loop, no sandbox, no limit, no other reader.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

ARGV = ["bash", "-c", "echo hi"]


def spawn_in_turn(count: int) -> None:
    """Run so many commands one after the other."""
    for _ in range(count):
        output, theirs = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 1)]
        pid = os.posix_spawnp(ARGV[0], ARGV, os.environ, file_actions=actions)
        os.close(theirs)
        text = b"".join(iter(lambda: os.read(output, 4096), b""))  # noqa: B023 - used at once
        os.close(output)
        _, status = os.waitpid(pid, 0)
        assert (text, status) == (b"hi\n", 0)


def main(count: int) -> float:
    """Commands per second over ``count`` of them."""
    workers = 2 * (os.cpu_count() or 1)
    context = multiprocessing.get_context("fork")
    start_s = time.perf_counter()
    processes = [
        context.Process(target=spawn_in_turn, args=(count // workers,)) for _ in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return count // workers * workers / (time.perf_counter() - start_s)


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
