"""An engine to be killed: opens the local backend, keeps sandboxes busy, prints what it has."""

from __future__ import annotations

import sys

import anyio

from hermes_rl.sandbox import BackendSettings, Sandbox, SandboxSpec, open_backend

BUSY = (
    "setsid sleep 300 >/dev/null 2>&1 & echo $!; "
    "(trap '' TERM HUP INT; exec sleep 300) >/dev/null 2>&1 & echo $!; pwd"
)


async def keep_busy(sandbox: Sandbox, moment: str) -> None:
    """Print the sandbox's processes and directory, then do ``moment`` for ever."""
    print((await sandbox.exec(BUSY, timeout_s=60)).text.replace("\n", " "), flush=True)
    if moment == "running":
        await sandbox.exec("sleep 300", timeout_s=300)
    elif moment == "streaming":
        async with sandbox.stream("yes") as process:
            async for _ in process:
                continue
    elif moment == "writing":
        while True:
            await sandbox.write("file", bytes(3_000_000))


async def main(moment: str) -> None:
    """Run until killed."""
    backend = open_backend("local", BackendSettings(run_id="victim"))
    async with backend, anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(keep_busy, await backend.create(SandboxSpec()), moment)
        if moment == "creating":
            while True:
                await (await backend.create(SandboxSpec())).close()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
