"""What a task wants kept of a sandbox: paths copied to the host before it is removed."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_rl.benchmarks.verifier_run import root_of
from hermes_rl.errors import FileError, UnsafeArchive
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.sandbox import Sandbox
from hermes_rl.types import JSONObject

__all__ = ["Artifact", "save_artifacts"]

MAX_ARTIFACT_BYTES = 256 << 20
"""Of one path; what is larger is left behind, and the evidence says so."""
_removing = LoopLimiter(1)


@dataclass(slots=True, frozen=True, kw_only=True)
class Artifact:
    """A path to keep.

    Attributes:
        source: Absolute path in the sandbox.
        destination: Path below the rollout's directory; "" = as in the sandbox.
        exclude: Globs over paths below ``source``; what they match is not kept.
    """

    source: str
    destination: str = ""
    exclude: tuple[str, ...] = ()


async def save_artifacts(
    artifacts: Sequence[Artifact], sandbox: Sandbox, directory: Path | None
) -> JSONObject:
    """Copy artifacts out; one that cannot be copied is named in the evidence and no error.

    Args:
        artifacts: What to keep.
        sandbox: Where it is.
        directory: Where it goes; None = nowhere.

    Returns:
        Evidence: ``artifacts`` (paths below ``directory``) and ``artifacts_failed``.

    Raises:
        SandboxError: The sandbox failed.
    """
    if directory is None:
        return {}
    saved, failed = [], {}
    for artifact in artifacts:
        # Normalised as if below "/", so that it cannot lead out of the directory.
        name = posixpath.normpath(f"/{artifact.destination or artifact.source}").lstrip("/")
        target = directory / name
        try:
            await _fresh_place(target)
            await sandbox.download(
                artifact.source, target, max_bytes=MAX_ARTIFACT_BYTES, user=root_of(sandbox)
            )
        except (FileError, UnsafeArchive, OSError) as error:
            failed[artifact.source] = str(error)
            continue
        if artifact.exclude:
            await anyio.to_thread.run_sync(_exclude, target, artifact.exclude, limiter=_removing)
        saved.append(name)
    return ({"artifacts": saved} if saved else {}) | (
        {"artifacts_failed": failed} if failed else {}
    )


async def _fresh_place(target: Path) -> None:
    """Remove what an earlier try of the rollout left there."""

    def make() -> None:
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)

    await anyio.to_thread.run_sync(make, limiter=_removing)


def _exclude(target: Path, globs: Sequence[str]) -> None:
    for path in sorted(target.rglob("*"), reverse=True):
        name = path.relative_to(target).as_posix()
        if any(fnmatch(name, glob) or fnmatch(path.name, glob) for glob in globs):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
