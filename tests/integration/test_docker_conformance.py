"""The conformance suite on real containers: an ordinary image, one without Python, an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.docker import create_backend
from hermes_rl.backends.runtime import Runtime
from hermes_rl.sandbox import Backend, Capability, Sandbox
from hermes_rl.testing.sandbox_conformance import SandboxConformance, ShelllessConformance

from .bare_images import LAUNCHER, image_with, python_to_copy, python_words
from .docker_boxes import BARE_IMAGE, EMPTY_IMAGE, TEST_IMAGE, box, run_settings

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

DECLARED = frozenset(Capability) - {Capability.GPU, Capability.BASH}
"""What the backend declares; its sandboxes add BASH where the image has it."""


@pytest.fixture(scope="session")
def python_dir(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return python_to_copy(tmp_path_factory.mktemp("python"))


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
        with image_with(python_dir, BARE_IMAGE) as context:
            cls.spec = box(image=None, dockerfile_dir=context)
            yield create_backend(run_settings(cache_dir))

    async def test_there_is_no_python(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("command -v python3 python", timeout_s=20)
        assert (result.exit_code, result.text) == (1, "")


class TestEmptyImage(ShelllessConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, cache_dir: Path, python_dir: Runtime) -> Iterator[Backend]:
        cls.python = python_words(python_dir)
        with image_with(python_dir, EMPTY_IMAGE) as context:
            cls.spec = box(image=None, dockerfile_dir=context)
            yield create_backend(run_settings(cache_dir))

    async def test_it_declares_no_bash(self, sandbox: Sandbox) -> None:
        assert sandbox.capabilities == DECLARED

    async def test_there_is_nothing_but_what_the_engine_mounts(self, fresh: Sandbox) -> None:
        names = {entry.name for entry in await fresh.list("/")}
        assert names == {".dockerenv", ".hermes", "dev", "etc", "opt", "proc", "sys", "tmp"}
