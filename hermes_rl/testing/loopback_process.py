"""A loopback cloud as a process, for clients that outlive the process that asked for it."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import anyio

from hermes_rl.testing.loopback_cloud import CloudLog, LoopbackCloud

__all__ = ["run_server"]


def run_server(server: type[LoopbackCloud[Any, Any]], *, description: str) -> None:
    """Serve as the command line says, print the URL, and end at SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0, help="0 = any that is free")
    parser.add_argument("--log", help="file that gets the events, a line of JSON each")
    parser.add_argument("--containers", action="store_true", help="sandboxes are containers")
    arguments = parser.parse_args()
    with Path(arguments.log or os.devnull).open("ab") as file:
        log = CloudLog(file)
        cloud = server(port=arguments.port, in_containers=arguments.containers, log=log)
        anyio.run(_serve_until_told, cloud)


async def _serve_until_told(server: LoopbackCloud[Any, Any]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with server:
            os.write(1, f"{server.url}\n".encode())
            async for _ in signals:
                return
