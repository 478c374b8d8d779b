"""Packages that only one backend needs: imported late, off the event loop, missed by name."""

from __future__ import annotations

import importlib

import anyio
import anyio.to_thread

from hermes_rl.errors import MissingExtra

__all__ = ["import_for"]


async def import_for(backend: str, module: str, *, extra: str) -> None:
    """Import in a thread what takes up to seconds to import.

    Args:
        backend: Name of the backend that needs it.
        module: Full name of a module that is, or imports, the package.
        extra: Extra of ours that installs the package.

    Raises:
        MissingExtra: The package is not installed.
    """
    limiter = anyio.CapacityLimiter(1)
    try:
        await anyio.to_thread.run_sync(importlib.import_module, module, limiter=limiter)
    except ModuleNotFoundError as error:
        raise MissingExtra.of(f"The {backend} backend", extra) from error
