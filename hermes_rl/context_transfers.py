"""Copying files between this machine and a sandbox, with results as reward code knows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from hermes_rl.errors import FileError, RewardError, UnsafeArchive
from hermes_rl.sandbox import Sandbox
from hermes_rl.types import JSONObject

__all__ = ["Transfers"]


class Transfers:
    """Uploads and downloads of one sandbox.

    Args:
        sandbox: Moves the bytes.
        resolve: Makes a path inside the sandbox absolute.
    """

    def __init__(self, sandbox: Sandbox, resolve: Callable[[str], Awaitable[str]]) -> None:
        self._sandbox = sandbox
        self._resolve = resolve

    async def upload_file(self, local: Path, remote: str) -> JSONObject:
        """Copy a file in.

        Raises:
            RewardError: There is no such file on this machine.
        """
        if not await anyio.Path(local).is_file():
            raise RewardError(f"ctx.upload_file: there is no file {local} on this machine.")
        return await self._upload(local, remote)

    async def upload_dir(self, local: Path, remote: str) -> list[JSONObject]:
        """Copy a directory's contents in.

        Raises:
            RewardError: There is no such directory on this machine.
        """
        if not await anyio.Path(local).is_dir():
            raise RewardError(f"ctx.upload_dir: there is no directory {local} on this machine.")
        outcome = await self._upload(local, remote)
        if outcome["exit_code"]:
            return [outcome]
        names = [file.relative_to(local) for file in await _files_below(local)]
        return [{**outcome, "path": f"{remote}/{name}"} for name in names]

    async def _upload(self, local: Path, remote: str) -> JSONObject:
        try:
            await self._sandbox.upload(local, await self._resolve(remote))
        except FileError as error:
            return {"exit_code": 1, "output": str(error)}
        return {"exit_code": 0, "output": ""}

    async def download_file(self, remote: str, local: Path) -> JSONObject:
        """Copy a file out."""
        error = await self._download(remote, local)
        target = anyio.Path(local)
        if error is None and await target.is_dir():
            error = f"{remote} is a directory; use ctx.download_dir."
        if error is not None:
            return {"success": False, "error": error}
        return {"success": True, "bytes": (await target.stat()).st_size}

    async def download_dir(self, remote: str, local: Path) -> list[JSONObject]:
        """Copy a directory's contents out."""
        error = await self._download(remote, local)
        if error is not None:
            return [{"success": False, "error": error}]
        return [
            {
                "success": True,
                "path": str(file.relative_to(local)),
                "bytes": (await file.stat()).st_size,
            }
            for file in await _files_below(local)
        ]

    async def _download(self, remote: str, local: Path) -> str | None:
        """Copy out; return what went wrong, None if nothing did."""
        await anyio.Path(local.parent).mkdir(parents=True, exist_ok=True)
        try:
            await self._sandbox.download(await self._resolve(remote), local)
        except (FileError, UnsafeArchive) as error:
            return str(error)
        return None


async def _files_below(top: Path) -> list[anyio.Path]:
    """Return the regular files below ``top``, sorted; links are not followed."""
    return sorted(
        [
            path
            async for path in anyio.Path(top).rglob("*")
            if await path.is_file() and not await path.is_symlink()
        ]
    )
