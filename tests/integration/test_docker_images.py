"""Images against a real daemon: found, built once, failing with their output."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.docker_connection import docker_host
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_images import BUILDS, ImageStore
from hermes_rl.errors import (
    BackendUnavailable,
    ConfigError,
    CreateError,
    ImageBuildFailed,
    ImageNotFound,
)
from hermes_rl.sandbox import SandboxSpec

from .docker_boxes import TEST_IMAGE, docker

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]


@asynccontextmanager
async def _store(default: str | None = None) -> AsyncIterator[ImageStore]:
    async with DockerEngine(docker_host()) as engine, anyio.create_task_group() as tasks:
        yield ImageStore(engine, tasks, default=default)
        tasks.cancel_scope.cancel()


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Path]:
    """A build context like no other; what is built from it is removed afterwards."""
    directory = tmp_path / "context"
    directory.mkdir()
    marker = uuid.uuid4().hex
    (directory / "marker").write_text(marker)
    yield directory
    wanted = ["images", "-q", "--filter", f"label=test-marker={marker}"]
    while images := docker(*wanted).split():  # the parent of one shows up when its child is gone
        docker("rmi", "-f", *images)


def _dockerfile(context: Path, *lines: str) -> SandboxSpec:
    marker = (context / "marker").read_text()
    text = "\n".join([f"FROM {TEST_IMAGE}", f"LABEL test-marker={marker}", *lines, ""])
    (context / "Dockerfile").write_text(text)
    return SandboxSpec(dockerfile_dir=context, build_timeout_s=60)


async def test_an_image_is_known_by_name_and_says_what_it_sets() -> None:
    async with _store() as images:
        image = await images.image_for(SandboxSpec(image=TEST_IMAGE))
    assert image.id == docker("inspect", "--format", "{{.Id}}", TEST_IMAGE)
    assert (image.name, image.workdir, image.user) == (TEST_IMAGE, "/root", "")


async def test_the_backends_image_is_the_default() -> None:
    async with _store(default=TEST_IMAGE) as images:
        assert (await images.image_for(SandboxSpec())).name == TEST_IMAGE


async def test_without_any_image_the_error_names_the_flag() -> None:
    async with _store() as images:
        with pytest.raises(ConfigError, match=r"--env\.terminal_image"):
            await images.image_for(SandboxSpec())


async def test_an_image_that_cannot_be_pulled_is_an_error_that_names_it() -> None:
    async with _store() as images:
        with pytest.raises((ImageNotFound, BackendUnavailable), match=r"no-such-registry\.invalid"):
            await images.image_for(SandboxSpec(image="no-such-registry.invalid/x:1"))


async def test_a_name_that_is_none_is_not_found() -> None:
    async with _store() as images:
        with pytest.raises(ImageNotFound):
            await images.image_for(SandboxSpec(image="Not A Name"))


async def test_a_dockerfile_is_built_with_its_settings(context: Path) -> None:
    spec = _dockerfile(
        context,
        "ENV A=1 LD_PRELOAD=",
        "WORKDIR /app",
        "USER nobody",
        "COPY marker /app/",
        'ENTRYPOINT ["sleep"]',
        'CMD ["60"]',
    )
    async with _store() as images:
        image = await images.image_for(spec)
    assert image.env.items() >= {"A": "1", "LD_PRELOAD": ""}.items()
    assert (image.workdir, image.user, image.entrypoint) == ("/app", "nobody", ("sleep", "60"))


async def test_many_wants_are_one_build(context: Path) -> None:
    spec = _dockerfile(context, "RUN echo $RANDOM$RANDOM > /random")
    found: set[str] = set()

    async def want(images: ImageStore) -> None:
        found.add((await images.image_for(spec)).id)

    async with _store() as images, anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(want, images)
    assert len(found) == 1


async def test_a_second_run_builds_nothing(context: Path) -> None:
    spec = _dockerfile(context, "RUN date +%N > /time")
    async with _store() as images:
        first = await images.image_for(spec)
    async with _store() as images:
        assert (await images.image_for(spec)).id == first.id


async def test_a_changed_file_is_another_image(context: Path) -> None:
    spec = _dockerfile(context, "COPY extra /")
    (context / "extra").write_text("1")
    async with _store() as images:
        first = await images.image_for(spec)
        (context / "extra").write_text("2")
        assert (await images.image_for(spec)).id != first.id


async def test_a_failed_build_keeps_its_output(context: Path) -> None:
    spec = _dockerfile(context, "RUN echo the-last-words; exit 5")
    async with _store() as images:
        with pytest.raises(ImageBuildFailed, match="returned a non-zero code: 5") as caught:
            await images.image_for(spec)
    assert "the-last-words" in caught.value.output
    assert str(context) in str(caught.value)


async def test_a_failed_build_fails_every_waiter_and_may_be_tried_again(context: Path) -> None:
    spec = _dockerfile(context, "COPY late /")
    errors: list[ImageBuildFailed] = []

    async def want(images: ImageStore) -> None:
        with pytest.raises(ImageBuildFailed) as caught:
            await images.image_for(spec)
        errors.append(caught.value)

    async with _store() as images:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(want, images)
        (context / "late").write_text("")
        await images.image_for(spec)
    assert len({id(error) for error in errors}) == 3


async def test_a_dockerfile_for_buildkit_is_built_by_it(context: Path) -> None:
    spec = _dockerfile(context, "RUN --mount=type=cache,target=/cache touch /built")
    async with _store() as images:
        image = await images.image_for(spec)
    assert image.id


async def test_buildkits_output_is_kept_too(context: Path) -> None:
    spec = _dockerfile(context, "RUN --mount=type=cache,target=/c echo the-last-words; exit 5")
    async with _store() as images:
        with pytest.raises(ImageBuildFailed, match="exit code: 5") as caught:
            await images.image_for(spec)
    assert "the-last-words" in caught.value.output


async def test_a_build_has_a_time_limit_and_who_gives_up_does_not_stop_it(context: Path) -> None:
    spec = _dockerfile(context, "RUN sleep 3")
    hasty = SandboxSpec(dockerfile_dir=context, build_timeout_s=0.5)
    async with _store() as images:
        with pytest.raises(CreateError, match=r"not ready within 0\.5 s"):
            await images.image_for(hasty)
        assert (await images.image_for(spec)).id


async def test_builds_that_never_end_keep_no_other_from_being_built(
    context: Path, tmp_path: Path
) -> None:
    spec = _dockerfile(context, "RUN true")
    async with _store() as images:
        for number in range(BUILDS):
            endless = tmp_path / f"endless-{number}"
            shutil.copytree(context, endless)
            _dockerfile(endless, f"LABEL number={number}", "RUN sleep 1000")
            with pytest.raises(CreateError, match="not ready within 1 s"):
                await images.image_for(SandboxSpec(dockerfile_dir=endless, build_timeout_s=1))
        with anyio.fail_after(120):
            assert (await images.image_for(spec)).id


async def test_a_directory_without_a_dockerfile_is_named(tmp_path: Path) -> None:
    async with _store() as images:
        with pytest.raises(ImageBuildFailed, match="holds no Dockerfile"):
            await images.image_for(SandboxSpec(dockerfile_dir=tmp_path))
