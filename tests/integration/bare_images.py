"""Images without a python3 that hold one for the tests' own programs, where no PATH finds it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.backends.runtime import Runtime, build_runtime

from .docker_boxes import docker

PYTHON_DIR = "/opt/python"
LAUNCHER = f"{PYTHON_DIR}/python"
MODULES = (
    "import hashlib, json, os, re, shutil, signal, socket, stat, struct, subprocess, sys, time"
)


def python_to_copy(directory: Path) -> Runtime:
    """Build an interpreter with the modules that the tests' programs import."""
    (directory / "modules.py").write_text(MODULES)
    return build_runtime(directory, programs={"modules": directory / "modules.py"})


def python_words(python: Runtime, *, argv0: str = f"{PYTHON_DIR}/bin/python3") -> Sequence[str]:
    """Return the words that start it in an image, without a shell."""
    loader, *rest = python.argv("modules", mount=PYTHON_DIR)[:4]
    return [loader, "--argv0", argv0, *rest, "-IS"]


@contextmanager
def image_with(python: Runtime, base: str) -> Iterator[Path]:
    """A build context that adds nothing to ``base`` but the interpreter; removes its image."""
    marker = uuid.uuid4().hex
    context = python.path
    launcher = context / "python"
    launcher.write_text(f'#!/bin/sh\nexec {" ".join(python_words(python, argv0=LAUNCHER))} "$@"\n')
    launcher.chmod(0o755)
    lines = [f"FROM {base}", f"LABEL test-marker={marker}", f"COPY . {PYTHON_DIR}/", ""]
    (context / "Dockerfile").write_text("\n".join(lines))
    yield context
    docker("rmi", *docker("images", "-q", "--filter", f"label=test-marker={marker}").split())


@contextmanager
def built_image(python: Runtime, base: str) -> Iterator[str]:
    """The same image, built, by name."""
    with image_with(python, base) as context:
        name = f"hermes-test-bare-{uuid.uuid4().hex[:12]}"
        docker("build", "--quiet", "--tag", name, str(context))
        yield name
