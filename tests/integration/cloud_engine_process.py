"""An engine to be killed: makes sandboxes in a cloud, says so, then waits.

python cloud_engine_process.py BACKEND LEASE_S COUNT
"""

from __future__ import annotations

import sys

import anyio

from hermes_rl.sandbox import BackendSettings, SandboxSpec, open_backend


async def main() -> None:
    name, lease_s, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    spec = SandboxSpec(image="hermes-test:latest", lease_s=lease_s)
    async with open_backend(name, BackendSettings(run_id="killed")) as backend:
        for _ in range(count):
            sandbox = await backend.create(spec)
            await sandbox.exec("sleep 600 >/dev/null 2>&1 &", timeout_s=20)
        print("ready", flush=True)
        await anyio.sleep_forever()


anyio.run(main)
