"""Uploads and downloads, honest and hostile."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from hermes_rl.errors import FileError, SandboxFileNotFound, SandboxIsADirectory, UnsafeArchive
from hermes_rl.sandbox import Sandbox
from hermes_rl.testing.sandbox_conformance.base import ConformanceBase, sh, unique

__all__ = ["TransferConformance"]


def tree(top: Path) -> dict[str, tuple[str, object]]:
    """Describe everything below ``top``: mode and contents, or a link's target."""
    found: dict[str, tuple[str, object]] = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            path = Path(directory, name)
            key = str(path.relative_to(top))
            if path.is_symlink():
                found[key] = ("link", os.readlink(path))
            elif path.is_dir():
                found[key] = ("dir", None)
            else:
                found[key] = (oct(path.stat().st_mode & 0o777), path.read_bytes())
    return found


class TransferConformance(ConformanceBase):
    """Needs only a Python in the sandbox, no shell."""

    async def make_tree(self, sandbox: Sandbox, code: str) -> str:
        """Run a Python program in a new directory of the sandbox and return that directory."""
        name = unique("tree")
        result = await sh(
            sandbox, self.script(f"import os\nos.mkdir({name!r}); os.chdir({name!r})\n{code}")
        )
        assert result.exit_code == 0, result.stderr_text
        return name

    async def test_tree_there_and_back(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """Contents, executable bits, empty directories, inner links and odd names survive."""
        source = tmp_path / "source"
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "run.sh").write_bytes(b"#!/bin/sh\n")
        (source / "run.sh").chmod(0o755)
        (source / "sub" / "data").write_bytes(bytes(range(256)) * 1000)
        (source / "sub" / "up").symlink_to("../run.sh")
        (source / "none").write_bytes(b"")
        (source / ("long" * 50)).write_bytes(b"x")
        (source / "é 漢\n").write_bytes(b"y")
        name = unique("there")
        await sandbox.upload(source, name)
        await sandbox.download(name, tmp_path / "back")
        assert tree(tmp_path / "back") == tree(source)

    async def test_single_file_there_and_back(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A file goes to exactly the path given, with its mode; parents are made."""
        source = tmp_path / "tool"
        source.write_bytes(b"#!/bin/sh\n")
        source.chmod(0o750)
        name = f"{unique('dir')}/renamed"
        await sandbox.upload(source, name)
        target = tmp_path / "deep" / "er" / "copy"
        await sandbox.download(name, target)
        assert target.read_bytes() == b"#!/bin/sh\n"
        assert target.stat().st_mode & 0o777 == 0o750

    async def test_big_file_there_and_back(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """20 MB are exact in both directions."""
        source, name = tmp_path / "big", unique("big")
        data = os.urandom(1 << 20) * 20
        source.write_bytes(data)
        await sandbox.upload(source, name)
        await sandbox.download(name, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == data

    async def test_upload_merges_into_a_directory(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """Contents are laid into an existing directory; other files stay."""
        name = unique("merge")
        await sandbox.write(f"{name}/kept", b"kept")
        await sandbox.write(f"{name}/changed", b"old")
        (tmp_path / "changed").write_bytes(b"new")
        await sandbox.upload(tmp_path, name)
        assert await sandbox.read(f"{name}/kept", max_bytes=10) == b"kept"
        assert await sandbox.read(f"{name}/changed", max_bytes=10) == b"new"

    async def test_upload_replaces_planted_links(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A link that stands in the way is replaced, never written through."""
        name = await self.make_tree(
            sandbox, "open('victim', 'w').write('v'); os.mkdir('d'); os.symlink('../victim', 'd/t')"
        )
        (tmp_path / "t").write_bytes(b"tests")
        await sandbox.upload(tmp_path, f"{name}/d")
        assert await sandbox.read(f"{name}/d/t", max_bytes=10) == b"tests"
        assert await sandbox.read(f"{name}/victim", max_bytes=10) == b"v"

    async def test_upload_of_a_file_onto_a_directory(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        """A directory is not replaced by a file."""
        (tmp_path / "f").write_bytes(b"x")
        with pytest.raises(SandboxIsADirectory):
            await sandbox.upload(tmp_path / "f", "/tmp")

    async def test_upload_of_nothing(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A local path that does not exist is named."""
        with pytest.raises(FileError, match="absent"):
            await sandbox.upload(tmp_path / "absent", "x")

    async def test_download_of_nothing(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A missing path in the sandbox is a typed error, and nothing is made here."""
        with pytest.raises(SandboxFileNotFound):
            await sandbox.download("no-such-tree", tmp_path / "t")
        assert not (tmp_path / "t").exists()

    async def test_download_onto_a_directory(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A file does not replace a local directory."""
        name = unique()
        await sandbox.write(name, b"x")
        with pytest.raises(FileError):
            await sandbox.download(name, tmp_path)
        assert await anyio.Path(tmp_path).is_dir()

    async def test_too_much_is_unsafe(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """More contents than allowed stop the download."""
        name = await self.make_tree(
            sandbox, "open('a', 'wb').write(bytes(600)); open('b', 'wb').write(bytes(600))"
        )
        with pytest.raises(UnsafeArchive):
            await sandbox.download(name, tmp_path / "t", max_bytes=1000)
        await sandbox.download(name, tmp_path / "ok", max_bytes=1200)

    async def test_huge_sparse_file_is_stopped_early(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        """A terabyte of nothing fills no disk and takes no time."""
        name = await self.make_tree(sandbox, "f = open('a', 'w'); os.truncate(f.fileno(), 1 << 40)")
        with anyio.fail_after(20), pytest.raises(UnsafeArchive):
            await sandbox.download(name, tmp_path / "t")

    @pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "sub/../../../x", "."])
    async def test_links_that_lead_outside(
        self, sandbox: Sandbox, tmp_path: Path, target: str
    ) -> None:
        """A link out of the tree does not leave the sandbox; one inside does."""
        name = await self.make_tree(sandbox, f"os.mkdir('d'); os.symlink({target!r}, 'd/link')")
        if target == ".":
            await sandbox.download(name, tmp_path / "t")
            assert os.readlink(tmp_path / "t" / "d" / "link") == "."
            return
        with pytest.raises(UnsafeArchive):
            await sandbox.download(name, tmp_path / "t")
        assert not (tmp_path / "t" / "d" / "link").is_symlink()

    async def test_pipes_and_devices_are_unsafe(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A named pipe is no file, and none is made here."""
        name = await self.make_tree(sandbox, "os.mkfifo('pipe')")
        with pytest.raises(UnsafeArchive):
            await sandbox.download(name, tmp_path / "t")
        assert not (tmp_path / "t" / "pipe").exists()

    async def test_set_user_id_does_not_leave(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """Files arrive without set-user-id bits, and readable to us."""
        name = await self.make_tree(sandbox, "open('s', 'w'); os.chmod('s', 0o6500)")
        await sandbox.download(name, tmp_path / "t")
        assert (tmp_path / "t" / "s").stat().st_mode & 0o7777 == 0o700

    async def test_local_links_are_not_followed(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A link below the local target is replaced, not written through."""
        outside, target = tmp_path / "outside", tmp_path / "t"
        outside.write_bytes(b"mine")
        target.mkdir()
        (target / "f").symlink_to(outside)
        name = await self.make_tree(sandbox, "open('f', 'w').write('theirs')")
        await sandbox.download(name, target)
        assert outside.read_bytes() == b"mine"
        assert (target / "f").read_bytes() == b"theirs"

    async def test_many_entries(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A thousand small files arrive."""
        name = await self.make_tree(
            sandbox, "[open(str(i), 'w').write(str(i)) for i in range(1000)]"
        )
        await sandbox.download(name, tmp_path / "t")
        assert {path.name: path.read_text() for path in (tmp_path / "t").iterdir()} == {
            str(number): str(number) for number in range(1000)
        }

    async def test_file_that_grows_meanwhile(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """A log that is being written is downloaded as of some moment."""
        name = await self.make_tree(sandbox, "open('log', 'w').write('x' * 100)")
        code = (
            f"import time\nf = open('{name}/log', 'a')\nend = time.time() + 20\n"
            "while time.time() < end: f.write('x' * 1000); f.flush(); time.sleep(0.001)"
        )
        async with sandbox.stream(self.script(code), session=None):
            for number in range(5):
                await sandbox.download(name, tmp_path / str(number))
                assert set((tmp_path / str(number) / "log").read_bytes()) == {ord("x")}

    async def test_transfers_at_once(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """Several uploads and downloads do not mix."""

        async def round_trip(number: int) -> None:
            source, name = tmp_path / f"s{number}", unique("at-once")
            source.write_bytes(b"%d" % number * 300_000)
            await sandbox.upload(source, name)
            await sandbox.download(name, tmp_path / f"t{number}")
            assert (tmp_path / f"t{number}").read_bytes() == b"%d" % number * 300_000

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(round_trip, number)
