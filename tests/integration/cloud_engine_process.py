"""An engine to be killed: makes sandboxes in a cloud, says so, then waits.

python cloud_engine_process.py BACKEND LEASE_S ...
"""

from __future__ import annotations

import sys

import anyio

from hermes_rl.sandbox import BackendSettings, SandboxSpec, open_backend


async def main() -> None:
    name, leases_s = sys.argv[1], [float(word) for word in sys.argv[2:]]
    async with open_backend(name, BackendSettings(run_id="killed")) as backend:
        for lease_s in leases_s:
            spec = SandboxSpec(image="hermes-test:latest", lease_s=lease_s)
            sandbox = await backend.create(spec)
            await sandbox.exec("sleep 600 >/dev/null 2>&1 &", timeout_s=20)
        print("ready", flush=True)
        await anyio.sleep_forever()


anyio.run(main)
