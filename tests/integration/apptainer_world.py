"""A machine with the stub of Apptainer on its PATH, and images for it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.backends.bubblewrap import HostSystem

STUB = Path(__file__).with_name("stub_apptainer.py")
CONFIGURATION = {
    *("alternatives", "bash.bashrc", "group", "hosts", "ld.so.cache", "ld.so.conf"),
    *("nsswitch.conf", "passwd", "profile", "python3", "resolv.conf"),
}
"""Of /etc, what programs do not start without."""


@dataclass(frozen=True)
class World:
    """What the stub knows of; see ``stub_apptainer.py``."""

    directory: Path

    @property
    def image(self) -> Path:
        """A sandbox directory."""
        return self.directory / "image"

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    def calls(self, verb: str) -> list[dict[str, Any]]:
        """What the stub was called with so far."""
        lines = (self.directory / "calls.jsonl").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call["argv"][0] == verb]

    def starts(self) -> list[list[str]]:
        """The command lines of containers that hold sandboxes, not trials."""
        return [c["argv"] for c in self.calls("exec") if any("/outpost" in w for w in c["argv"])]

    def publish(self, name: str, config: dict[str, Any], **files: str) -> None:
        """Put an image into the registry."""
        image = self.directory / "registry" / name
        image.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.image, image, symlinks=True)
        for path, text in files.items():
            (image / path).write_text(text)
        Path(f"{image}.json").write_text(json.dumps(config))


@contextmanager
def apptainer_world(directory: Path) -> Iterator[World]:
    """Put the stub on PATH while the context is open."""
    world = World(directory)
    world.bin.mkdir()
    program = world.bin / "apptainer"
    words = shlex.join([sys.executable, "-I", str(STUB), str(directory)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    (directory / "version").write_text("apptainer version 1.4.5-2")
    (directory / "calls.jsonl").touch()
    _make_image(world.image)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{world.bin}:{os.environ['PATH']}")
        yield world


def _make_image(image: Path) -> None:
    """Make an image of this machine's programs."""
    system = HostSystem.here()
    for name in ("dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var/tmp"):
        (image / name).mkdir(parents=True)
    for name, target in system.links.items():
        (image / name.lstrip("/")).symlink_to(target)
    for name in system.directories:
        (image / name.lstrip("/")).mkdir()
        (image / name.lstrip("/") / ".host").touch()
    for name in CONFIGURATION & system.configuration.keys():
        source = system.configuration[name]
        if Path(source).is_file():
            shutil.copyfile(source, image / "etc" / name)
        else:
            shutil.copytree(source, image / "etc" / name, symlinks=True)
