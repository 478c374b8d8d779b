"""The unpacked files of a Docker image, as a host of the ssh backend has them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .docker_boxes import docker

LEFT_OUT = (
    *(f"usr/share/{name}" for name in ("doc", "locale", "man", "perl", "perl5", "zoneinfo")),
    "usr/lib/git-core",
    "var/lib/dpkg",
)
"""Two thirds of the files, and nothing that tasks use: removing files is slow on some disks."""


@contextlib.contextmanager
def unpacked_image(image: str, directory: Path) -> Iterator[Path]:
    """Unpack an image below ``directory``; removed at the end, as it is large."""
    root = directory / "files"
    root.mkdir(parents=True)
    container = docker("create", image, "true")
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
            words = ["tar", "-x", "-C", str(root), *(f"--exclude={name}" for name in LEFT_OUT)]
            subprocess.run(words, stdin=export.stdout, check=True, timeout=300)
        assert export.returncode == 0
        yield root
    finally:
        docker("rm", container)
        subprocess.run(["rm", "-rf", str(root)], check=True, timeout=300)
