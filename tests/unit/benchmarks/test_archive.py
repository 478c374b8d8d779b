"""Task archives: what is unpacked, and that nothing harmful is."""

from __future__ import annotations

import gzip
import io
import os
import random
import resource
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.benchmarks import archive
from hermes_rl.benchmarks.archive import unpack
from hermes_rl.errors import TaskError


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive_of(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def everything_below(folder: Path) -> dict[str, bytes | str | None]:
    """Files, links and directories by relative name."""
    return {
        path.relative_to(folder).as_posix(): (
            os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else None
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_files_directories_modes_and_links_inside_are_unpacked(tmp_path: Path, format: int) -> None:
    long_name = "d/" * 10 + "n" * 90 if format != tarfile.USTAR_FORMAT else "d/" * 10 + "short"
    data = archive_of(
        member(".", type=tarfile.DIRTYPE, mode=0o755),
        member("./run.sh", b"#!/bin/sh\n", mode=0o755),
        member("data.bin", bytes(range(256)) * 5, mode=0o600),
        member("empty", type=tarfile.DIRTYPE),
        member("sub/link", type=tarfile.SYMTYPE, linkname="../data.bin"),
        member("here", type=tarfile.SYMTYPE, linkname="sub"),
        member(long_name, b"long"),
        format=format,
    )
    unpack(data, tmp_path / "t")
    found = everything_below(tmp_path / "t")
    assert found["data.bin"] == bytes(range(256)) * 5
    assert (found["sub/link"], found["here"], found["empty"]) == ("../data.bin", "sub", None)
    assert found[long_name] == b"long"
    assert (tmp_path / "t/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "t/data.bin").stat().st_mode & 0o777 == 0o644


def test_what_the_tar_command_makes_of_a_tree_comes_out_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/größe\n.txt").write_bytes(b"x" * 70_000)
    (source / "a/link").symlink_to("b")
    (source / "zero").write_bytes(b"")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(source, arcname=".")
    unpack(buffer.getvalue(), tmp_path / "target")
    assert everything_below(tmp_path / "target") == everything_below(source)


def test_the_last_of_several_members_with_one_name_counts(tmp_path: Path) -> None:
    unpack(archive_of(member("f", b"first"), member("f", b"last")), tmp_path)
    assert (tmp_path / "f").read_bytes() == b"last"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([member("/etc/passwd", b"x")], "'/etc/passwd' leads out"),
        ([member("../x", b"x")], r"'\.\./x' leads out"),
        ([member("a/../../x", b"x")], "leads out"),
        ([member("a/" * 70 + "x", b"x")], "leads out"),
        ([member("l", type=tarfile.SYMTYPE, linkname="/etc")], "'l' is a link to '/etc'"),
        ([member("l", type=tarfile.SYMTYPE, linkname="..")], "outside"),
        ([member("a/l", type=tarfile.SYMTYPE, linkname="../../x")], "outside"),
        ([member("a/l", type=tarfile.SYMTYPE, linkname="b/../../x")], "outside"),
        ([member("l", type=tarfile.SYMTYPE, linkname="")], "outside"),
        ([member("l", type=tarfile.LNKTYPE, linkname="/etc/passwd")], "'l' is a hard link"),
        ([member("c", type=tarfile.CHRTYPE, devmajor=1)], "'c' is a character device"),
        ([member("b", type=tarfile.BLKTYPE)], "'b' is a block device"),
        ([member("p", type=tarfile.FIFOTYPE)], "'p' is a pipe"),
        ([member("s", type=tarfile.GNUTYPE_SPARSE)], "'s' is a sparse file"),
        ([member("v", type=b"V")], "'v' is of an unknown kind"),
        (
            [member("l", type=tarfile.SYMTYPE, linkname="d"), member("l/x", b"x")],
            "'l/x' is below a link",
        ),
        (
            [member("l", b"x"), member("l", type=tarfile.SYMTYPE, linkname="d")],
            "'l' is in it as a link and as something else",
        ),
        (
            [
                member("a/l", type=tarfile.SYMTYPE, linkname="x"),
                member("a", type=tarfile.SYMTYPE, linkname="x"),
            ],
            "'a' is in it as a link and as something else",
        ),
    ],
)
def test_what_leads_out_or_is_no_file_is_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], message: str
) -> None:
    target = tmp_path / "target"
    with pytest.raises(TaskError, match=message):
        unpack(archive_of(member("before", b"x"), *members), target)
    assert {path.name for path in tmp_path.iterdir()} == {"target"}
    assert all(path.resolve().is_relative_to(target) for path in target.rglob("*"))


def zeros(size: int, declared: int | None = None) -> Iterator[bytes]:
    info = tarfile.TarInfo("zeros")
    info.size = size if declared is None else declared
    yield info.tobuf(tarfile.GNU_FORMAT)
    for _ in range(size >> 20):
        yield bytes(1 << 20)


def compressed(pieces: Iterator[bytes]) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as stream:
        for piece in pieces:
            stream.write(piece)
    return buffer.getvalue()


def test_ten_gigabytes_of_zeros_are_refused_before_any_is_written(tmp_path: Path) -> None:
    data = compressed(zeros(8 << 20, declared=10 << 30))
    with pytest.raises(TaskError, match=r"more than 2,147,483,648 bytes"):
        unpack(data, tmp_path / "t")
    assert list((tmp_path / "t").iterdir()) == []


def test_many_files_of_zeros_are_refused_at_the_limit_in_little_memory(tmp_path: Path) -> None:
    # Real zeros, 256 MB of them in 1 MB files, against a limit of 16 MB.
    def files() -> Iterator[bytes]:
        for number in range(256):
            info = tarfile.TarInfo(f"zeros-{number}")
            info.size = 1 << 20
            yield info.tobuf(tarfile.GNU_FORMAT)
            yield bytes(1 << 20)

    data = compressed(files())
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TaskError, match=r"more than 16,777,216 bytes"):
        unpack(data, tmp_path, max_bytes=16 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 32 << 10
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 16 << 20


def test_zeros_behind_the_end_mark_are_bounded_too(tmp_path: Path) -> None:
    data = compressed(iter([bytes(1024), *[bytes(1 << 20)] * 64]))
    with pytest.raises(TaskError, match="more than"):
        unpack(data, tmp_path, max_bytes=16 << 20)


def test_a_huge_name_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        info = tarfile.TarInfo("name")
        info.size, info.type = 1 << 30, kind
        data = compressed(iter([info.tobuf(tarfile.GNU_FORMAT), bytes(1 << 20)]))
        with pytest.raises(TaskError, match="extended header of 1,073,741,824"):
            unpack(data, tmp_path)


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 10)
    with pytest.raises(TaskError, match="more than 10 entries"):
        unpack(archive_of(*[member(f"f{n}") for n in range(11)]), tmp_path)


def extended(records: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    padded = records + bytes(-len(records) % 512)
    file = tarfile.TarInfo("f").tobuf(tarfile.USTAR_FORMAT)
    return compressed(iter([info.tobuf(tarfile.USTAR_FORMAT) + padded + file + bytes(1024)]))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (b"9 path=/x", "leads out"),
        (b"12 path=/xx\n", "leads out"),
        (b"99 path=a\n", "no gzip-compressed tar"),
        (b"0 path=a\n", "no gzip-compressed tar"),
        (b"x path=a\n", "no gzip-compressed tar"),
        (b"5 pa\n", "no gzip-compressed tar"),
        (b"11 size=-1\n", "no gzip-compressed tar"),
        (b"20 size=99999999999\n", "more than"),
        (b"22 GNU.sparse.major=1\n", "sparse"),
    ],
)
def test_extended_headers_are_checked_like_plain_ones(
    tmp_path: Path, records: bytes, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        unpack(extended(records), tmp_path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"plain text",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-4],
        lambda data: data[:-8] + bytes(8),
        lambda data: gzip.compress(gzip.decompress(data)[:700]),
        lambda data: gzip.compress(b"x" * 2048),
    ],
)
def test_damaged_archives_are_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(TaskError, match="no gzip-compressed tar archive"):
        unpack(spoil(archive_of(member("f", random.Random(1).randbytes(5000)))), tmp_path)


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    rng = random.Random(7)
    plain = gzip.decompress(
        archive_of(
            member("a/f", b"x" * 600),
            member("n" * 150, b"y"),
            member("l", type=tarfile.SYMTYPE, linkname="a"),
        )
    )
    for number in range(300):
        damaged = bytearray(plain)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        target = tmp_path / str(number)
        try:
            unpack(gzip.compress(bytes(damaged), 1), target, max_bytes=1 << 20)
        except (TaskError, OSError):
            continue
        assert all(path.resolve().is_relative_to(target) for path in target.rglob("*"))
