"""Our interpreter, brought to where there is no python3: real shells, real programs, real files."""

from __future__ import annotations

import gzip
import os
import platform
import pty
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from hermes_rl.backends.outpost.frames import FrameParser, Kind, frame, unpack_fields
from hermes_rl.backends.outpost.start import (
    NO_PYTHON_EXIT_CODE,
    OutpostStart,
    outpost_options,
)
from hermes_rl.backends.runtime import RuntimeImpossible, build_runtime
from hermes_rl.backends.shipment import Bundle, InterpreterStock, NotTaken, Shipment
from hermes_rl.backends.shipment_script import TOOLS

PYENV = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
BUSYBOX = shutil.which("busybox")
SHELLS = [
    pytest.param("dash", marks=pytest.mark.skipif(not shutil.which("dash"), reason="no dash")),
    pytest.param("bash", marks=pytest.mark.skipif(not shutil.which("bash"), reason="no bash")),
    pytest.param("busybox", marks=pytest.mark.skipif(not BUSYBOX, reason="no busybox")),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.of(build_runtime(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "new" / "place"


class Pipes:
    """A transport over a process' pipes."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ConnectionResetError from None

    async def receive(self) -> bytes:
        assert self.process.stdout is not None
        try:
            return await self.process.stdout.receive()
        except anyio.EndOfStream:
            return b""

    async def aclose(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()


def programs(directory: Path, names: Sequence[str], *, busybox: bool = False) -> str:
    """Make a directory with these programs and no others; return it."""
    directory.mkdir()
    for name in names:
        found = BUSYBOX if busybox else shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    return str(directory)


@asynccontextmanager
async def other_end(shipment: Shipment, path: str, *, shell: str = "sh") -> AsyncIterator[Pipes]:
    """Run a shipment's command by a shell, with what is on ``path`` and nothing else."""
    found = shutil.which(shell)
    assert found is not None
    words = [found, *(["sh"] if shell == "busybox" else []), *shipment.argv()[1:]]
    environment = {"PATH": path, "HOME": "/nowhere"}
    async with await anyio.open_process(words, env=environment, stderr=subprocess.PIPE) as process:
        pipes = Pipes(process)
        with suppress(ConnectionResetError):  # it may have answered and ended already
            await pipes.send(shipment.preamble)
        try:
            yield pipes
        finally:
            await pipes.aclose()


async def delivered(shipment: Shipment, path: str, *, shell: str = "sh") -> str:
    async with other_end(shipment, path, shell=shell) as pipes:
        with anyio.fail_after(60):
            return await shipment.deliver(pipes)


@pytest.fixture
def tools(tmp_path: Path) -> str:
    return programs(tmp_path / "tools", [*TOOLS, "gzip"])


def runs(directory: str, bundle: Bundle) -> bool:
    words = [*bundle.runtime.interpreter(directory), "-c", "import tarfile, json, ctypes; print(7)"]
    return subprocess.run(words, capture_output=True, check=False).stdout == b"7\n"


@pytest.mark.parametrize("shell", SHELLS)
async def test_a_shell_and_a_few_programs_are_enough(
    shell: str, bundle: Bundle, tmp_path: Path, place: Path
) -> None:
    path = programs(tmp_path / "few", [*TOOLS, "gzip"], busybox=shell == "busybox")
    there = await delivered(Shipment(bundle, [str(place)]), path, shell=shell)
    assert there == str(place / bundle.name)
    assert runs(there, bundle)
    assert os.listdir(place) == [bundle.name]
    assert place.stat().st_mode & 0o777 == 0o700


async def test_without_gzip_it_is_sent_as_it_is(
    bundle: Bundle, tmp_path: Path, place: Path
) -> None:
    path = programs(tmp_path / "few", TOOLS)
    assert runs(await delivered(Shipment(bundle, [str(place)]), path), bundle)


@pytest.mark.parametrize("version", ["3.12", "3.13"])
async def test_newer_interpreters_run_from_it_too(
    version: str, tmp_path: Path, place: Path, tools: str
) -> None:
    found = sorted(PYENV.glob(f"versions/{version}*/bin/python3"))
    if not found:
        pytest.skip(f"no Python {version} in {PYENV}")
    bundle = Bundle.of(build_runtime(tmp_path / "cache", python=found[0]))
    assert runs(await delivered(Shipment(bundle, [str(place)]), tools), bundle)


async def test_what_is_there_is_not_sent_again(bundle: Bundle, place: Path, tools: str) -> None:
    there = await delivered(Shipment(bundle, [str(place)]), tools)
    inode = Path(there).stat().st_ino
    async with other_end(Shipment(bundle, [str(place)]), tools) as pipes:
        assert await pipes.receive() == f"done {there}\n".encode()
    assert Path(there).stat().st_ino == inode


async def test_many_at_once_agree(bundle: Bundle, place: Path, tools: str) -> None:
    found: list[str] = []

    async def deliver() -> None:
        found.append(await delivered(Shipment(bundle, [str(place)]), tools))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(deliver)
    assert found == 4 * [str(place / bundle.name)]
    assert os.listdir(place) == [bundle.name]
    assert runs(found[0], bundle)


async def test_one_that_is_cut_short_leaves_nothing(
    bundle: Bundle, place: Path, tools: str
) -> None:
    async with other_end(Shipment(bundle, [str(place)]), tools) as pipes:
        assert await pipes.receive() == b"send gzip\n"
        await pipes.send(bundle.packed[:100_000])
    assert os.listdir(place) == []
    assert runs(await delivered(Shipment(bundle, [str(place)]), tools), bundle)


async def test_one_that_was_changed_on_disk_is_replaced(
    bundle: Bundle, place: Path, tools: str
) -> None:
    there = await delivered(Shipment(bundle, [str(place)]), tools)
    (Path(there) / "outpost.pyc").write_bytes(b"something else")
    assert await delivered(Shipment(bundle, [str(place)]), tools) == there
    assert (Path(there) / "outpost.pyc").stat().st_size > 10_000
    assert os.listdir(place) == [bundle.name]


async def refused(shipment: Shipment, path: str) -> NotTaken:
    with pytest.raises(NotTaken) as caught:
        await delivered(shipment, path)
    return caught.value


@pytest.mark.parametrize("more", [(), ("gzip",)], ids=["plain", "gzip"])
async def test_what_is_damaged_on_the_way_is_not_used(
    more: tuple[str, ...], bundle: Bundle, tmp_path: Path, place: Path
) -> None:
    contents = bytearray(gzip.decompress(bundle.packed))
    contents[-1] ^= 1
    damaged = replace(bundle, packed=gzip.compress(bytes(contents), 0))
    path = programs(tmp_path / "few", [*TOOLS, *more])
    error = await refused(Shipment(damaged, [str(place)]), path)
    assert (str(error), error.is_final) == ("it arrived damaged", False)
    assert os.listdir(place) == []


async def test_missing_programs_are_named(bundle: Bundle, tmp_path: Path, place: Path) -> None:
    few = programs(tmp_path / "few", [name for name in TOOLS if name not in ("mv", "sha256sum")])
    error = await refused(Shipment(bundle, [str(place)]), few)
    assert str(error).endswith(": mv sha256sum")
    assert error.is_final
    none = programs(tmp_path / "none", [])
    assert str(await refused(Shipment(bundle, [str(place)]), none)).endswith(": head")


async def test_another_kind_of_processor_is_named(
    bundle: Bundle, tmp_path: Path, place: Path
) -> None:
    path = programs(tmp_path / "few", [name for name in TOOLS if name != "uname"])
    uname = Path(path, "uname")
    uname.write_text("#!/bin/sh\necho riscv64\n")
    uname.chmod(0o755)
    error = await refused(Shipment(bundle, [str(place)]), path)
    assert "the processor there is riscv64" in str(error)
    assert platform.machine() in str(error)
    assert error.is_final
    assert not place.exists()


async def test_the_first_place_that_will_do_is_taken(
    bundle: Bundle, tmp_path: Path, place: Path, tools: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    bad = [str(tmp_path / "file" / "below"), str(tmp_path / "link")]
    there = await delivered(Shipment(bundle, [*bad, str(place), "/never"]), tools)
    assert there == str(place / bundle.name)
    error = await refused(Shipment(bundle, bad), tools)
    assert f"{bad[0]} cannot be made; {bad[1]} is not a directory of this user's" in str(error)
    assert error.is_final


async def test_one_that_does_not_run_there_is_told(
    bundle: Bundle, tmp_path: Path, place: Path, tools: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle.runtime.path, broken)
    (broken / bundle.runtime.loader).write_text("#!/bin/sh\nexit 77\n")
    error = await refused(
        Shipment(Bundle.of(replace(bundle.runtime, path=broken)), [str(place)]), tools
    )
    assert "exit code 77" in str(error)
    assert error.is_final
    assert os.listdir(place) == []


async def test_an_end_without_an_answer_is_told(bundle: Bundle, place: Path, tools: str) -> None:
    async with other_end(Shipment(bundle, [str(place)]), tools) as pipes:
        pipes.process.kill()
        with pytest.raises(NotTaken) as caught:
            await Shipment(bundle, []).deliver(pipes)
    assert not caught.value.is_final


def test_it_is_as_small_as_the_documentation_says(bundle: Bundle) -> None:
    """docs/backends.md: about 4.5 MB on the way, more with other builds of Python; 30 MB on the
    disk, where it lies twice for a moment."""
    assert len(bundle.packed) <= 6e6
    table = gzip.decompress(bundle.packed)[: bundle.table_bytes].decode()
    sizes = [int(line.split()[0]) for line in table.splitlines()]
    assert sum(sizes) + bundle.table_bytes == bundle.plain_bytes
    on_disk = sum(-(-size // 4096) * 4096 for size in [*sizes, bundle.table_bytes])
    assert bundle.plain_bytes + on_disk <= 30e6


@asynccontextmanager
async def stock_in(cache_dir: Path) -> AsyncIterator[InterpreterStock]:
    async with anyio.create_task_group() as tasks:
        yield InterpreterStock(cache_dir, tasks)


async def unavailable(stock: InterpreterStock) -> NotTaken:
    with pytest.raises(NotTaken) as caught:
        await stock.bundle()
    return caught.value


async def test_the_stock_keeps_one_bundle(tmp_path: Path) -> None:
    async with stock_in(tmp_path) as stock:
        assert await stock.bundle() is await stock.bundle()


async def test_what_may_pass_is_told_as_that_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with stock_in(tmp_path / "file" / "cache") as stock:
        error = await unavailable(stock)
        assert "cannot be made" in str(error)
        assert not error.is_final
        (tmp_path / "file").unlink()
        assert (await stock.bundle()).packed


def interpreter_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Let a script be what runs us; return the file that has a line for every time it is run."""
    runs = tmp_path / "runs"
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho run >>{runs}\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(fake))
    return runs


async def test_a_build_that_fails_fails_once_for_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = interpreter_of(tmp_path, monkeypatch, "exit 7")
    errors: list[NotTaken] = []

    async def ask(stock: InterpreterStock) -> None:
        errors.append(await unavailable(stock))

    async with stock_in(tmp_path / "cache") as stock:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask, stock)
        assert runs.read_text() == "run\n"
        assert [error.is_final for error in errors] == 5 * [False]
        await unavailable(stock)
        assert runs.read_text() == "run\nrun\n"


async def test_a_machine_that_can_never_build_it_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter_of(tmp_path, monkeypatch, r'printf "%s\\0%s\\0%s" "$0" /usr/lib /usr')
    async with stock_in(tmp_path / "cache") as stock:
        error = await unavailable(stock)
    assert "not a dynamically linked" in str(error)
    assert error.is_final


async def test_a_name_that_cannot_be_sent_is_told_as_final(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.runtime.path, tmp_path / "copy")
    (tmp_path / "copy" / "a b").write_text("")
    with pytest.raises(RuntimeImpossible, match="a space in it"):
        Bundle.of(replace(bundle.runtime, path=tmp_path / "copy"))


async def test_the_outpost_follows_on_the_same_stream(
    bundle: Bundle, tmp_path: Path, place: Path, tools: str
) -> None:
    workdir = tmp_path / "work" / "it's here"
    start = OutpostStart.of(outpost_options(lease_s=60), workdir=str(workdir))
    async with other_end(Shipment(bundle, [str(place)], start), tools) as pipes:
        await Shipment(bundle, [], start).deliver(pipes)
        await pipes.send(start.preamble)
        parser = FrameParser()
        frames = list(parser.feed(await pipes.receive()))
    assert frames[0][0] == Kind.HELLO
    assert unpack_fields(frames[0][2])["cwd"] == os.fsencode(workdir)


async def test_it_starts_an_outpost_later_too(bundle: Bundle, place: Path, tools: str) -> None:
    there = await delivered(Shipment(bundle, [str(place)]), tools)
    words = bundle.runtime.interpreter(there)
    start = replace(OutpostStart.of(outpost_options(lease_s=60)), interpreter=words)
    started = await anyio.run_process(["sh", "-c", start.command_line()], input=start.preamble)
    assert next(FrameParser().feed(started.stdout))[0] == Kind.HELLO
    shutil.rmtree(there)
    assert (await anyio.run_process(start.argv(), check=False)).returncode == NO_PYTHON_EXIT_CODE


class Terminal:
    """A transport over a pseudo-terminal's end."""

    def __init__(self, master: int) -> None:
        os.set_blocking(master, False)
        self.master = master

    async def send(self, data: bytes) -> None:
        while data:
            await anyio.wait_writable(self.master)
            data = data[os.write(self.master, data[:1024]) :]

    async def receive(self) -> bytes:
        await anyio.wait_readable(self.master)
        return os.read(self.master, 65536)

    async def aclose(self) -> None:
        os.close(self.master)


@contextmanager
def shell_on_a_terminal(shell: str) -> Iterator[Terminal]:
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(shell.split()[0], [*shell.split(), "-i"])
    try:
        yield Terminal(master)
    finally:
        os.close(master)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("shell", ["bash", "sh", "busybox sh"])
async def test_a_terminal_carries_it_and_every_byte_afterwards(
    shell: str, bundle: Bundle, place: Path
) -> None:
    start = OutpostStart.of(outpost_options(lease_s=60))
    shipment = Shipment(bundle, [str(place)], start)
    if not shutil.which(shell.split()[0]):
        pytest.skip(f"no {shell}")
    assert len(shipment.typed("abc123x")) < 1000  # busybox's shell takes 1024
    with shell_on_a_terminal(shell) as terminal, anyio.fail_after(60):
        await terminal.send(shipment.typed("abc123x").encode())
        seen = b""
        while not seen.endswith(b"x321cba"):
            seen += await terminal.receive()
        await terminal.send(shipment.typed_preamble)
        await shipment.deliver(terminal)
        await terminal.send(start.preamble)
        await terminal.send(frame(Kind.PING, 0x0D0A0311) + frame(Kind.PING, 0x04130A1A))
        parser = FrameParser()
        ids: list[int] = []
        while len(ids) < 3:
            ids += [id for _, id, _ in parser.feed(await terminal.receive())]
    assert ids == [0, 0x0D0A0311, 0x04130A1A]
