"""Image files on ssh hosts: directories and archives, overlaid or copied, for any login."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.errors import ConfigError, ImageNotFound, Unsupported
from hermes_rl.sandbox import Backend, SandboxSpec
from tests.conftest import require

from .bubblewrap_here import require_bubblewrap
from .loopback_sshd import (
    Sshd,
    complaint_of_guest_namespaces,
    running_sshd,
    sshd_for_guest,
)

BUSYBOX = shutil.which("busybox")
SPEC = SandboxSpec(image="tiny")


@pytest.fixture(autouse=True, scope="module")
def _bubblewrap() -> None:
    require_bubblewrap()


def make_image(root: Path, *, owner: int = 0) -> Path:
    """Make the files of a small image: a static busybox and a seed."""
    require(BUSYBOX is not None, "needs busybox (apt install busybox-static)")
    for name in ("bin", "etc", "tmp", "data"):
        (root / name).mkdir(parents=True)
    shutil.copy2(str(BUSYBOX), root / "bin/busybox")
    for name in ("sh", "cat", "echo", "id", "ls", "mkdir", "pwd", "rm"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "data/seed").write_text("seed\n")
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    return root


def pack(archive: Path, directory: Path, name: str) -> None:
    subprocess.run(["tar", "-caf", str(archive), "-C", str(directory), name], check=True)


def complaint_of(setup: str) -> str:
    """Return why shell commands cannot be done in a mount namespace, "" if they can."""
    words = ["unshare", "-m", "sh", "-c", setup]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return done.stderr.strip() or "no reason" if done.returncode else ""


@asynccontextmanager
async def opened(sshd: Sshd, place: Path, **options: object) -> AsyncIterator[Backend]:
    images = {"tiny": str(place)}
    async with sshd.backend(ssh_isolation="bwrap", images=images, **options) as backend:
        yield backend


async def check_that_sandboxes_are_apart(backend: Backend, image: Path) -> None:
    one, other = await backend.create(SPEC), await backend.create(SPEC)
    try:
        command = "cat /data/seed; echo new > /data/seed; rm /bin/rm; mkdir /made; id -u; pwd"
        result = await one.exec(command, timeout_s=60)
        assert (result.exit_code, result.text) == (0, "seed\n0\n/\n")
        assert await one.read("/data/seed", max_bytes=10) == b"new\n"
        seen = await other.exec("cat /data/seed; ls /bin/rm; ls /made", timeout_s=60)
        assert seen.text == "seed\n/bin/rm\n"
        assert (image / "data/seed").read_text() == "seed\n"
        assert not (image / "made").exists()
    finally:
        await one.close()
        await other.close()


async def test_sandboxes_write_to_views_of_their_own(sshd: Sshd, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image")
    async with opened(sshd, image) as backend:
        await check_that_sandboxes_are_apart(backend, image)


async def test_files_are_copied_where_the_file_system_has_no_overlays(tmp_path: Path) -> None:
    """An overlay cannot be the upper layer of another."""
    image = make_image(tmp_path / "image")
    for name in ("lower", "upper", "work", "host/sandboxes"):
        (tmp_path / name).mkdir(parents=True)
    layers = ",".join(f"{n}dir={tmp_path}/{n}" for n in ("lower", "upper", "work"))
    setup = f"mount -t overlay -o {layers} overlay {tmp_path}/host/sandboxes"
    if complaint := complaint_of(setup):
        # On an overlay (a container's own root) that is what every other test here runs on.
        pytest.skip(f"no overlay can be made here: {complaint}")
    with running_sshd(tmp_path / "host", setup=setup) as sshd:
        async with opened(sshd, image) as backend:
            sandbox = await backend.create(SPEC)
            # An overlay would be seen by the sandbox alone.
            assert sshd.seen(sshd.sandboxes / sandbox.id / "root/bin/busybox").exists()
            await sandbox.close()
            await check_that_sandboxes_are_apart(backend, image)
        assert sshd.left_in_the_end() == []


async def test_a_login_without_rights_runs_images_of_its_own(tmp_path: Path) -> None:
    complaint = complaint_of_guest_namespaces()
    if complaint:
        pytest.skip(complaint)
    with sshd_for_guest() as sshd:
        image = make_image(sshd.directory / "image", owner=sshd.uid)
        async with opened(sshd, image) as backend:
            await check_that_sandboxes_are_apart(backend, image)
        assert sshd.left_in_the_end() == []


async def test_an_archive_is_unpacked_before_anything_starts(sshd: Sshd, tmp_path: Path) -> None:
    image, archive = make_image(tmp_path / "image"), tmp_path / "image.tar.gz"
    pack(archive, image, ".")
    async with opened(sshd, archive) as backend:
        await check_that_sandboxes_are_apart(backend, image)
    (files,) = sshd.sandboxes.glob("*image-*")
    assert files.name.startswith("image-")


async def test_what_is_no_image_is_told_before_anything_starts(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="docker export") as caught:
        async with opened(sshd, tmp_path / "nothing"):
            pass
    assert str(tmp_path / "nothing") in str(caught.value)
    saved = tmp_path / "saved.tar"
    (tmp_path / "manifest.json").write_text("[]")
    pack(saved, tmp_path, "manifest.json")
    with pytest.raises(ConfigError, match="docker export, not docker save") as caught:
        async with opened(sshd, saved):
            pass
    assert str(saved) in str(caught.value)


async def test_a_dockerfile_that_needs_no_build_is_followed(sshd: Sshd, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image")
    context = tmp_path / "context"
    context.mkdir()
    (context / "file").write_text("copied\n")
    dockerfile = context / "Dockerfile"
    dockerfile.write_text("FROM tiny\nENV A=1 B='two words'\nWORKDIR /srv/app\nCOPY file .\n")
    async with opened(sshd, image) as backend:
        sandbox = await backend.create(SandboxSpec(dockerfile_dir=context))
        result = await sandbox.exec("pwd; cat file; echo $A $B", timeout_s=60)
        assert result.text == "/srv/app\ncopied\n1 two words\n"
        await sandbox.close()
        dockerfile.write_text("FROM tiny\nRUN useradd x\n")
        with pytest.raises(Unsupported, match="RUN useradd x"):
            await backend.create(SandboxSpec(dockerfile_dir=context))
        with pytest.raises(ImageNotFound, match=r"'huge'.*names: tiny"):
            await backend.create(SandboxSpec(image="huge"))
