"""What an ssh host has, and where its sandboxes go; stdlib only, Python >= 3.8."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any


class Refusal(Exception):
    """Something is wrong with the host or the plan; the text goes to the engine."""


def survey(plan: dict[str, Any]) -> dict[str, Any]:
    """Make the base directory; return what the engine wants to know."""
    base = make_base(plan["base"])
    names = [os.path.join("/etc", name) for name in plan["configuration"]]
    return {
        "base": base,
        "uid": os.getuid(),
        "machine": platform.machine(),
        "has_bash": shutil.which("bash") is not None,
        "bubblewrap": shutil.which("bwrap") or "",
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name in plan["kept"] or name.startswith("LC_")
        },
        "links": {name: os.readlink(name) for name in plan["system"] if os.path.islink(name)},
        "directories": [
            name for name in plan["system"] if os.path.isdir(name) and not os.path.islink(name)
        ],
        "configuration": {
            os.path.basename(name): os.path.realpath(name) for name in names if os.path.exists(name)
        },
        "images": images_of(plan["images"], base),
    }


def images_of(images: dict[str, str], base: str) -> dict[str, dict[str, Any]]:
    """Return where the files of the images that are there lie, or will lie once unpacked."""
    found: dict[str, dict[str, Any]] = {}
    for name, place in images.items():
        if os.path.isdir(place):
            found[name] = {"files": place, "is_unpacked": True}
        elif os.path.isfile(place):
            info = os.stat(place)
            version = f"{info.st_dev:x}-{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}"
            files = os.path.join(base, f"image-{version}")
            is_unpacked = os.path.isdir(files)
            if is_unpacked:
                os.utime(files)
            found[name] = {"files": files, "is_unpacked": is_unpacked}
    return found


def make_base(wanted: str) -> str:
    """Return the parent of all sandboxes' directories, private to this user."""
    base = os.path.expanduser(wanted) if wanted else f"/tmp/hermes_rl-ssh-{os.getuid()}"
    try:
        os.makedirs(base, 0o700, exist_ok=True)
    except OSError as error:
        raise Refusal(f"{base} cannot be made: {error.strerror}") from None
    info = os.lstat(base)
    if os.path.islink(base) or info.st_uid != os.getuid():
        raise Refusal(f"{base} is not a directory of this user's")
    os.chmod(base, 0o700)
    return base
