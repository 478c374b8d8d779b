"""Files: reading, writing, listing, all bytes and every awkward case."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from hermes_rl.errors import (
    FileError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxIsADirectory,
    SandboxPermissionDenied,
)
from hermes_rl.sandbox import Sandbox
from hermes_rl.testing.sandbox_conformance.base import ConformanceBase, sh, unique

__all__ = ["FileConformance"]


class FileConformance(ConformanceBase):
    """Needs only a Python in the sandbox, no shell.

    Attributes:
        unwritable: A file that no user of the sandbox may write to, not even root.
        longest_name_bytes: What its file system takes.
    """

    unwritable = "/sys/kernel/uevent_seqnum"
    longest_name_bytes = 255

    async def make(self, sandbox: Sandbox, code: str, *arguments: str) -> str:
        """Run a Python program in the sandbox's own directory and return what it printed."""
        result = await sh(sandbox, self.script(code, *arguments))
        assert result.exit_code == 0, (result.exit_code, result.stderr_text)
        return result.text.strip()

    async def mode(self, sandbox: Sandbox, path: str) -> int:
        """Return a file's permission bits."""
        code = "import os, sys; print(os.lstat(sys.argv[1]).st_mode & 0o7777)"
        return int(await self.make(sandbox, code, path))

    async def test_files_are_binary_safe(self, sandbox: Sandbox) -> None:
        """Every byte value survives a write and a read."""
        name, data = unique(), bytes(range(256)) * 17
        await sandbox.write(name, data)
        assert await sandbox.read(name, max_bytes=len(data)) == data

    async def test_empty_file(self, sandbox: Sandbox) -> None:
        """No bytes are a file too."""
        name = unique()
        await sandbox.write(name, b"")
        assert await sandbox.read(name, max_bytes=0) == b""

    @pytest.mark.parametrize("size_bytes", [1 << 18, (1 << 19) + 1, (1 << 20) - 1, 5_000_001])
    async def test_sizes_around_every_message_limit(
        self, sandbox: Sandbox, size_bytes: int
    ) -> None:
        """Files around and above the sizes in which they travel are exact."""
        name, data = unique(), (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]
        await sandbox.write(name, data)
        assert await sandbox.read(name, max_bytes=size_bytes) == data

    async def test_parents_are_made(self, sandbox: Sandbox) -> None:
        """Directories on the way to a new file are created."""
        name = unique()
        await sandbox.write(f"{name}/a/b/c", b"deep")
        assert await sandbox.read(f"{name}/a/b/c", max_bytes=10) == b"deep"

    async def test_home_is_expanded(self, sandbox: Sandbox) -> None:
        """``~/`` is the home directory."""
        name = unique()
        await sandbox.write(f"~/{name}", b"x")
        code = "import os, sys; print(os.path.exists(os.path.expanduser('~/' + sys.argv[1])))"
        assert await self.make(sandbox, code, name) == "True"

    async def test_absolute_paths(self, sandbox: Sandbox) -> None:
        """A path from the root is taken as it is."""
        here = await self.make(sandbox, "import os; print(os.getcwd())")
        path = f"{here}/{unique()}"
        await sandbox.write(path, b"abs")
        assert (
            await self.make(sandbox, "import sys; print(open(sys.argv[1]).read())", path) == "abs"
        )

    async def test_new_file_gets_the_umask(self, sandbox: Sandbox) -> None:
        """Without a mode a new file has 0666 less the umask."""
        name = unique()
        await sandbox.write(name, b"x")
        code = "import os; m = os.umask(0); print(0o666 & ~m)"
        assert await self.mode(sandbox, name) == int(await self.make(sandbox, code))

    async def test_new_file_gets_the_mode(self, sandbox: Sandbox) -> None:
        """A given mode is exact, whatever the umask."""
        for mode in (0o755, 0o600, 0o777):
            name = unique()
            await sandbox.write(name, b"x", mode=mode)
            assert await self.mode(sandbox, name) == mode

    async def test_existing_file_keeps_its_mode(self, sandbox: Sandbox) -> None:
        """Overwriting changes contents only."""
        name = unique()
        await sandbox.write(name, b"old", mode=0o751)
        await sandbox.write(name, b"new", mode=0o600)
        assert await self.mode(sandbox, name) == 0o751
        assert await sandbox.read(name, max_bytes=10) == b"new"

    async def test_link_is_followed(self, sandbox: Sandbox) -> None:
        """Writing through a link changes its target; the link stays."""
        target, link = unique("target"), unique("link")
        await sandbox.write(target, b"old", mode=0o640)
        await self.make(sandbox, "import os, sys; os.symlink(*sys.argv[1:])", target, link)
        await sandbox.write(link, b"new")
        assert await sandbox.read(target, max_bytes=10) == b"new"
        assert await self.mode(sandbox, target) == 0o640
        code = "import os, sys; print(os.path.islink(sys.argv[1]))"
        assert await self.make(sandbox, code, link) == "True"

    async def test_dangling_link_makes_its_target(self, sandbox: Sandbox) -> None:
        """Writing through a link to nothing creates what it points to."""
        target, link = unique("target"), unique("link")
        await self.make(sandbox, "import os, sys; os.symlink(*sys.argv[1:])", target, link)
        await sandbox.write(link, b"made")
        assert await sandbox.read(target, max_bytes=10) == b"made"

    async def test_reader_never_sees_half_a_file(self, sandbox: Sandbox) -> None:
        """Contents change from old to new in one step."""
        name = unique()
        await sandbox.write(name, b"a" * 1_500_000)
        code = (
            "import sys, time\nend = time.time() + 1.0\nseen = set()\nprint('up', flush=True)\n"
            "while time.time() < end:\n    d = open(sys.argv[1], 'rb').read()\n"
            "    seen.add((len(d), len(set(d))))\nprint(sorted(seen))"
        )
        async with sandbox.stream(self.script(code, name), session=None) as process:
            chunks = aiter(process)
            await anext(chunks)
            while process.result is None:
                for letter in (b"b", b"c"):
                    await sandbox.write(name, letter * 1_500_000)
            text = b"".join([chunk.data async for chunk in chunks])
        assert text.strip() == b"[(1500000, 1)]"

    async def test_write_leaves_nothing_beside(self, sandbox: Sandbox) -> None:
        """No temporary file stays, after success or failure."""
        name = unique()
        await sandbox.write(f"{name}/file", b"1")
        await sandbox.write(f"{name}/file", bytes(2_000_000))
        await sandbox.write(f"{name}/dir/x", b"1")
        with pytest.raises(SandboxIsADirectory):
            await sandbox.write(f"{name}/dir", bytes(2_000_000))
        assert [entry.name for entry in await sandbox.list(name)] == ["dir", "file"]

    async def test_missing_file_is_a_typed_error(self, sandbox: Sandbox) -> None:
        """Reading what is not there raises SandboxFileNotFound, which names the path."""
        with pytest.raises(SandboxFileNotFound, match="no-such-file") as caught:
            await sandbox.read("no-such-file", max_bytes=10)
        assert caught.value.path == "no-such-file"

    async def test_path_through_a_file_is_not_found(self, sandbox: Sandbox) -> None:
        """A file in the place of a directory is as good as nothing."""
        name = unique()
        await sandbox.write(name, b"x")
        with pytest.raises(SandboxFileNotFound):
            await sandbox.read(f"{name}/below", max_bytes=10)

    async def test_directory_is_a_typed_error(self, sandbox: Sandbox) -> None:
        """Neither reading nor writing a directory works."""
        with pytest.raises(SandboxIsADirectory):
            await sandbox.read("/", max_bytes=10)
        with pytest.raises(SandboxIsADirectory):
            await sandbox.write("/tmp", b"x")

    async def test_denied_write_is_a_typed_error(self, sandbox: Sandbox) -> None:
        """Where even root may not write, that is told."""
        with pytest.raises(SandboxPermissionDenied):
            await sandbox.write(self.unwritable, b"x")

    async def test_too_large_is_a_typed_error(self, sandbox: Sandbox) -> None:
        """More than ``max_bytes`` is an error, not a cut."""
        name = unique()
        await sandbox.write(name, bytes(1000))
        assert len(await sandbox.read(name, max_bytes=1000)) == 1000
        with pytest.raises(SandboxFileTooLarge):
            await sandbox.read(name, max_bytes=999)

    async def test_huge_sparse_file_is_refused_at_once(self, sandbox: Sandbox) -> None:
        """A terabyte of nothing is not read to find out that it is too large."""
        name = unique()
        await self.make(
            sandbox,
            "import os, sys; f = open(sys.argv[1], 'w'); os.truncate(f.fileno(), 1 << 40)",
            name,
        )
        with anyio.fail_after(10), pytest.raises(SandboxFileTooLarge):
            await sandbox.read(name, max_bytes=1 << 20)

    async def test_offset(self, sandbox: Sandbox) -> None:
        """Reading starts where asked; beyond the end there is nothing."""
        name = unique()
        await sandbox.write(name, b"0123456789")
        assert await sandbox.read(name, max_bytes=100, offset=7) == b"789"
        assert await sandbox.read(name, max_bytes=3, offset=7) == b"789"
        assert await sandbox.read(name, max_bytes=100, offset=50) == b""
        with pytest.raises(SandboxFileTooLarge):
            await sandbox.read(name, max_bytes=2, offset=7)

    async def test_files_of_the_kernel_are_read(self, sandbox: Sandbox) -> None:
        """Files that claim no size, as in /proc, are read to their end."""
        assert b"Linux" in await sandbox.read("/proc/version", max_bytes=10_000)

    async def test_pipe_and_device_do_not_block(self, sandbox: Sandbox) -> None:
        """What is no regular file is refused, at once."""
        name = unique("fifo")
        await self.make(sandbox, "import os, sys; os.mkfifo(sys.argv[1])", name)
        for path in (name, "/dev/zero"):
            with anyio.fail_after(10), pytest.raises(FileError):
                await sandbox.read(path, max_bytes=10)
            with anyio.fail_after(10), pytest.raises(FileError):
                await sandbox.write(path, b"x")

    async def test_nul_in_a_path_is_a_file_error(self, sandbox: Sandbox) -> None:
        """A path that cannot exist is an error of that path."""
        for path in ("a\0b", ""):
            with pytest.raises(FileError):
                await sandbox.read(path, max_bytes=10)
            with pytest.raises(FileError):
                await sandbox.write(path, b"x")

    async def test_a_path_too_long_for_any_file_is_a_file_error(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        """However long it is, it is an error of that path and not the sandbox's end."""
        (tmp_path / "file").write_bytes(b"x")
        for length in (5_000, 2_000_000):
            path = "/tmp/" + length * "x"
            with pytest.raises(FileError):
                await sandbox.read(path, max_bytes=10)
            with pytest.raises(FileError):
                await sandbox.write(path, b"x")
            with pytest.raises(FileError):
                await sandbox.list(path)
            with pytest.raises(FileError):
                await sandbox.upload(tmp_path / "file", path)
            with pytest.raises(FileError):
                await sandbox.download(path, tmp_path / "copy")
        assert await sandbox.ping() < 60

    async def test_awkward_names(self, sandbox: Sandbox) -> None:
        """Any name that a file can have works everywhere."""
        directory = unique()
        names = [
            "a b",
            "-rf",
            "é漢🙂",
            "new\nline",
            "quo'te\"",
            "*",
            "$HOME",
            "\udcff\udcfe",
            "x" * self.longest_name_bytes,
        ]
        for name in names:
            await sandbox.write(f"{directory}/{name}", name.encode("utf-8", "surrogateescape"))
        for entry in await sandbox.list(directory):
            data = await sandbox.read(f"{directory}/{entry.name}", max_bytes=1000)
            assert data.decode("utf-8", "surrogateescape") == entry.name
        assert {entry.name for entry in await sandbox.list(directory)} == set(names)

    async def test_list_tells_kinds_and_sizes(self, sandbox: Sandbox) -> None:
        """Entries are sorted and say what they are; links are not followed."""
        name = unique()
        await sandbox.write(f"{name}/file", b"12345", mode=0o640)
        code = (
            "import os, sys; os.chdir(sys.argv[1]); os.mkdir('dir', 0o750); os.chmod('dir', 0o750);"
            "os.symlink('/', 'link'); os.mkfifo('pipe'); os.utime('file', (1e9, 1e9))"
        )
        await self.make(sandbox, code, name)
        entries = await sandbox.list(name)
        kinds = [(entry.name, entry.kind) for entry in entries]
        assert kinds == [("dir", "dir"), ("file", "file"), ("link", "link"), ("pipe", "other")]
        file = entries[1]
        assert (file.size_bytes, file.mode, file.mtime_s) == (5, 0o640, 1e9)
        assert entries[0].mode == 0o750

    async def test_list_of_what_is_no_directory(self, sandbox: Sandbox) -> None:
        """A missing directory and a file are different errors."""
        name = unique()
        await sandbox.write(name, b"x")
        with pytest.raises(SandboxFileNotFound):
            await sandbox.list("no-such-dir")
        with pytest.raises(SandboxIsADirectory):
            await sandbox.list(name)

    async def test_list_is_bounded(self, sandbox: Sandbox) -> None:
        """Of a huge directory ten thousand entries are listed."""
        name = unique()
        code = (
            "import os, sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]);"
            "[os.close(os.open(f'{i:06d}', os.O_CREAT)) for i in range(10500)]"
        )
        await self.make(sandbox, code, name)
        entries = await sandbox.list(name)
        assert len(entries) == 10_000
        assert entries[0].name == "000000"
        await self.make(sandbox, "import shutil, sys; shutil.rmtree(sys.argv[1])", name)

    async def test_many_operations_at_once(self, sandbox: Sandbox) -> None:
        """Concurrent reads and writes do not mix."""
        directory = unique()

        async def round_trip(number: int) -> None:
            data = b"%d " % number * 50_000
            await sandbox.write(f"{directory}/{number}", data)
            assert await sandbox.read(f"{directory}/{number}", max_bytes=len(data)) == data

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(round_trip, number)

    async def test_full_device_is_a_file_error(self, sandbox: Sandbox) -> None:
        """No space left is an error of the write, and the sandbox goes on."""
        name = unique()
        await self.make(sandbox, "import os, sys; os.symlink('/dev/full', sys.argv[1])", name)
        with pytest.raises(FileError):
            await sandbox.write(name, b"x")
        assert await sandbox.ping() < 5
