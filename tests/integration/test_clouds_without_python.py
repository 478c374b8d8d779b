"""Images without python3 at the clouds: our interpreter comes along. See ``shipment.py``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.errors import CreateError
from hermes_rl.sandbox import Backend, Capability, Sandbox
from hermes_rl.testing.sandbox_conformance import CommandConformance
from tests.conftest import require

from .bare_images import LAUNCHER, built_image, python_to_copy
from .cloud_conformance import OnCloud, OnDaytona, OnModal
from .clouds import CLOUDS, DAYTONA, Cloud
from .docker_boxes import BARE_IMAGE, EMPTY_IMAGE, TEST_IMAGE, box

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


class BareConformance(WithoutPython, CommandConformance):
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


async def test_an_image_without_stty_is_told_what_helps_where_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BARE_IMAGE}\nRUN rm /usr/bin/stty\n")
    async with DAYTONA.serving(in_containers=True) as server, DAYTONA.backend() as backend:
        with pytest.raises(CreateError, match=r"no python3.*: the image has no stty") as caught:
            await backend.create(box(image=None, dockerfile_dir=tmp_path))
        assert f"Image {tmp_path} has" in str(caught.value)
        assert str(caught.value).endswith("Use an image that has python3.")
        assert not caught.value.retryable
        assert server.lives.alive == []


async def test_images_from_directories_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    bare, whole = (tmp_path / top / "task1" / "environment" for top in ("bare", "whole"))
    for directory, image in ((bare, BARE_IMAGE), (whole, TEST_IMAGE)):
        directory.mkdir(parents=True)
        (directory / "Dockerfile").write_text(f"FROM {image}\n")
    async with DAYTONA.serving(in_containers=True), DAYTONA.backend() as backend:
        was_sent = []
        for directory in (bare, whole):
            sandbox = await backend.create(box(image=None, dockerfile_dir=directory))
            found = await sandbox.exec("test -e /.hermes", timeout_s=60)
            was_sent.append(found.exit_code == 0)
            await sandbox.close()
    assert was_sent == [True, False]


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_an_image_of_nothing_but_busybox_will_do(cloud: Cloud, tmp_path: Path) -> None:
    """No C library, no coreutils, no bash: what smaller images than Debian's are like."""
    busybox = shutil.which("busybox")
    require(busybox is not None, "needs busybox (apt install busybox-static)")
    assert busybox is not None
    shutil.copy(busybox, tmp_path / "busybox")
    lines = [
        f"FROM {EMPTY_IMAGE}",
        "COPY busybox /bin/busybox",
        'RUN ["/bin/busybox", "--install", "-s", "/bin"]',
        "RUN echo root:x:0:0::/root:/bin/sh >/etc/passwd",
        "",
    ]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    async with cloud.serving(in_containers=True), cloud.backend() as backend:
        sandbox = await backend.create(box(image=None, dockerfile_dir=tmp_path))
        found = await sandbox.exec("cd /tmp; find / -name 'libc*' -not -path '/.*'", timeout_s=60)
        assert (found.exit_code, found.text) == (0, "")
        assert (await sandbox.exec("pwd", timeout_s=60)).text == "/tmp\n"
        assert Capability.BASH not in sandbox.capabilities
        await sandbox.close()
