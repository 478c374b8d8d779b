"""Unpacks the archive of an image's files on an ssh host; stdlib only, Python >= 3.8."""

from __future__ import annotations

import os
from typing import Any

from hermes_rl.backends.outpost.host_survey import Refusal
from hermes_rl.backends.outpost.leftovers import remove_tree

ROOTS = ("bin", "etc", "lib", "usr")
"""An image's files have one of these at their top."""


def unpack(plan: dict[str, Any]) -> bool:
    """Make the directory ``files`` of the tar archive ``archive``; someone may do so as well."""
    files, archive = plan["files"], plan["archive"]
    directory, name = os.path.split(files)
    scratch = os.path.join(directory, f".{name}-{os.getpid()}")
    os.mkdir(scratch, 0o755)
    try:
        # A user without rights can make no devices; the sandbox has its own.
        words = ["tar", "-x", "-f", archive, "-C", scratch, "--exclude=dev/*", "--exclude=./dev/*"]
        code = os.spawnvp(os.P_WAIT, words[0], words)
        if code != 0:
            raise Refusal(f"{archive} cannot be unpacked (tar ended with {code})")
        if not any(os.path.isdir(os.path.join(scratch, root)) for root in ROOTS):
            raise Refusal(
                f"{archive} holds no image's files: make it with docker export, not docker save"
            )
        os.utime(scratch)  # tar has set the image's; ours tells when it was last asked for
        try:
            os.rename(scratch, files)
        except OSError:
            if not os.path.isdir(files):  # else another engine was quicker
                raise
    finally:
        remove_tree(scratch)
    return True
