"""Images without python3 at the clouds: our interpreter comes along. See ``shipment.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.errors import CreateError
from hermes_rl.sandbox import Backend, Sandbox
from hermes_rl.testing.sandbox_conformance import (
    CapabilityConformance,
    CommandConformance,
    TransferConformance,
)

from .bare_images import LAUNCHER, built_image, python_to_copy
from .cloud_conformance import OnCloud, OnDaytona, OnModal
from .clouds import CLOUDS, Cloud
from .docker_boxes import BARE_IMAGE, box

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]


class WithoutPython(OnCloud):
    python = (LAUNCHER,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, server: Any, bare_image: str) -> Backend:
        cls.spec = box(image=bare_image, workdir="/work")
        return cls.cloud.backend(f"{cls.cloud.name}-bare")


@pytest.fixture(scope="module")
def bare_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = python_to_copy(tmp_path_factory.mktemp("python"))
    with built_image(python, BARE_IMAGE) as name:
        yield name


class BareConformance(
    WithoutPython,
    CommandConformance,
    CapabilityConformance,
    TransferConformance,
):
    """The part of the suite that is run in every test; the rest is in ``tests/scale``."""

    async def test_there_is_no_python(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("command -v python3 python", timeout_s=20)
        assert (result.exit_code, result.text) == (1, "")

    async def test_the_second_sandbox_is_not_asked_for_python(
        self, backend: Backend, sandbox: Sandbox, server: Any
    ) -> None:
        before = len(server.log.times(self.cloud.calls[1]))
        await (await backend.create(self.spec)).close()
        assert len(server.log.times(self.cloud.calls[1])) == before + 1


class TestModalWithoutPython(OnModal, BareConformance):
    pass


class TestDaytonaWithoutPython(OnDaytona, BareConformance):
    pass


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_an_image_that_cannot_take_ours_is_told_what_helps(
    cloud: Cloud, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BARE_IMAGE}\nRUN rm /usr/bin/sha256sum\n")
    async with cloud.serving(in_containers=True) as server, cloud.backend() as backend:
        with pytest.raises(CreateError, match=r"no python3.*: sha256sum\. Use an image") as caught:
            await backend.create(box(image=None, dockerfile_dir=tmp_path))
        assert ("add_python" in str(caught.value)) == (cloud.name == "modal")
        assert not caught.value.retryable
        assert server.lives.alive == []
