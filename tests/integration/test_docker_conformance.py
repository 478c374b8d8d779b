"""The conformance suite on real containers: an ordinary image, one without Python, an empty one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.docker import create_backend
from hermes_rl.backends.runtime import Runtime, build_runtime
from hermes_rl.sandbox import Backend, Capability, Sandbox
from hermes_rl.testing.sandbox_conformance import SandboxConformance, ShelllessConformance

from .docker_boxes import BARE_IMAGE, EMPTY_IMAGE, TEST_IMAGE, box, docker, run_settings

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

DECLARED = frozenset(Capability) - {Capability.GPU, Capability.BASH}
"""What the backend declares; its sandboxes add BASH where the image has it."""


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


PYTHON_DIR = "/opt/python"
LAUNCHER = f"{PYTHON_DIR}/python"
MODULES = (
    "import hashlib, json, os, re, shutil, signal, socket, stat, struct, subprocess, sys, time"
)


@pytest.fixture(scope="session")
def python_dir(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """An interpreter to copy into images that have none, where no PATH finds it."""
    directory = tmp_path_factory.mktemp("python")
    (directory / "modules.py").write_text(MODULES)
    return build_runtime(directory, programs={"modules": directory / "modules.py"})


@contextmanager
def _image_with(python: Runtime, base: str) -> Iterator[Path]:
    """A build context that adds nothing to ``base`` but the interpreter; removes its image."""
    marker = uuid.uuid4().hex
    context = python.path
    launcher = context / "python"
    launcher.write_text(f'#!/bin/sh\nexec {" ".join(_start(python, argv0=LAUNCHER))} "$@"\n')
    launcher.chmod(0o755)
    lines = [f"FROM {base}", f"LABEL test-marker={marker}", f"COPY . {PYTHON_DIR}/", ""]
    (context / "Dockerfile").write_text("\n".join(lines))
    yield context
    docker("rmi", *docker("images", "-q", "--filter", f"label=test-marker={marker}").split())


def _start(python: Runtime, *, argv0: str = f"{PYTHON_DIR}/bin/python3") -> Sequence[str]:
    loader, *rest = python.argv("modules", mount=PYTHON_DIR)[:4]
    return [loader, "--argv0", argv0, *rest, "-IS"]


class TestOrdinaryImage(SandboxConformance):
    spec = box(image=TEST_IMAGE, workdir="/work")

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, cache_dir: Path) -> Backend:
        return create_backend(run_settings(cache_dir))

    async def test_it_declares_all_but_gpu(self, backend: Backend) -> None:
        sandbox = await backend.create(self.spec)
        assert backend.capabilities == DECLARED
        assert sandbox.capabilities == DECLARED | {Capability.BASH}
        await sandbox.close()


class TestImageWithoutPython(SandboxConformance):
    python = (LAUNCHER,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, cache_dir: Path, python_dir: Runtime) -> Iterator[Backend]:
        with _image_with(python_dir, BARE_IMAGE) as context:
            cls.spec = box(image=None, dockerfile_dir=context)
            yield create_backend(run_settings(cache_dir))

    async def test_there_is_no_python(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("command -v python3 python", timeout_s=20)
        assert (result.exit_code, result.text) == (1, "")


class TestEmptyImage(ShelllessConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, cache_dir: Path, python_dir: Runtime) -> Iterator[Backend]:
        cls.python = _start(python_dir)
        with _image_with(python_dir, EMPTY_IMAGE) as context:
            cls.spec = box(image=None, dockerfile_dir=context)
            yield create_backend(run_settings(cache_dir))

    async def test_it_declares_no_bash(self, sandbox: Sandbox) -> None:
        assert sandbox.capabilities == DECLARED

    async def test_there_is_nothing_but_what_the_engine_mounts(self, fresh: Sandbox) -> None:
        names = {entry.name for entry in await fresh.list("/")}
        assert names == {".dockerenv", ".hermes", "dev", "etc", "opt", "proc", "sys", "tmp"}
