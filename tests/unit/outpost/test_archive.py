"""Unpacking what a hostile sandbox sent, and packing what we send."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.backends.outpost.archive import Unpacker, pack
from hermes_rl.errors import FileError, UnsafeArchive

LIMIT = 1 << 20


def member(name: str, data: bytes = b"", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def archive(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def unpack(data: bytes, target: Path, *, piece_bytes: int = 1000, **limits: int) -> None:
    unpacker = Unpacker(target, **{"max_bytes": LIMIT, **limits})
    try:
        for start in range(0, len(data), piece_bytes):
            unpacker.feed(data[start : start + piece_bytes])
        unpacker.finish()
    finally:
        unpacker.close()


def everything_below(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """A target inside a directory in which nothing else may appear or change."""
    (tmp_path / "cage" / "outside").mkdir(parents=True)
    (tmp_path / "cage" / "outside" / "file").write_text("mine")
    return tmp_path / "cage" / "target"


def check_cage(guarded: Path) -> None:
    assert (guarded.parent / "outside" / "file").read_text() == "mine"
    assert {path.name for path in guarded.parent.iterdir()} <= {"outside", "target"}
    assert {path.name for path in (guarded.parent / "outside").iterdir()} == {"file"}


HOSTILE: dict[str, Callable[[], bytes]] = {
    "parent": lambda: archive(directory("."), member("../evil", b"x")),
    "deep parent": lambda: archive(directory("."), member("a/../../evil", b"x")),
    "absolute": lambda: archive(directory("."), member("/tmp/hermes-evil", b"x")),
    "link out": lambda: archive(directory("."), link("l", "../outside")),
    "absolute link": lambda: archive(directory("."), link("l", "/etc")),
    "empty link": lambda: archive(directory("."), link("l", "")),
    "up after down": lambda: archive(
        directory("."), directory("d"), link("d/up", ".."), link("l", "d/up/../outside")
    ),
    "through a link": lambda: archive(
        directory("."), directory("d"), link("l", "d"), member("l/x", b"x")
    ),
    "directory over a link": lambda: archive(directory("."), link("l", "."), directory("l")),
    "hard link": lambda: archive(
        directory("."), member("f", b"x"), member("h", type=tarfile.LNKTYPE, linkname="f")
    ),
    "hard link out": lambda: archive(
        directory("."), member("h", type=tarfile.LNKTYPE, linkname="../outside/file")
    ),
    "device": lambda: archive(
        directory("."), member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
    ),
    "block device": lambda: archive(directory("."), member("b", type=tarfile.BLKTYPE)),
    "pipe": lambda: archive(directory("."), member("p", type=tarfile.FIFOTYPE)),
    "unknown type": lambda: archive(directory("."), member("z", type=b"V")),
    "link for a file": lambda: archive(link("f", "/etc/passwd")),
    "device for a file": lambda: archive(member("f", type=tarfile.CHRTYPE)),
    "too deep": lambda: archive(directory("."), member("d/" * 300 + "f", b"x")),
    "long path": lambda: archive(directory("."), member(f"{'d' * 199}/" * 20 + "f", b"x")),
    "long name": lambda: archive(directory("."), member("n" * 100_000, b"x")),
    "no tar": lambda: b"this is no tar archive at all" * 100,
    "cut short": lambda: archive(directory("."), member("f", b"x" * 5000))[:3000],
    "no end": lambda: archive(directory("."), member("f", b"x"))[:1536],
    "nothing": lambda: b"",
    "global header": lambda: bytes(
        tarfile.TarInfo.create_pax_global_header({"comment": "x"})  # type: ignore[attr-defined]
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 77])
def test_hostile_archives_are_refused(guarded: Path, name: str, piece_bytes: int) -> None:
    with pytest.raises(UnsafeArchive):
        unpack(HOSTILE[name](), guarded, piece_bytes=piece_bytes)
    check_cage(guarded)
    assert not Path("/tmp/hermes-evil").exists()


def test_limits_hold(guarded: Path) -> None:
    many = archive(directory("."), *(member(str(number)) for number in range(3_000)))
    with pytest.raises(UnsafeArchive, match="too many"):
        unpack(many, guarded, max_entries=2_000)
    assert len(list(guarded.iterdir())) <= 2_000
    with pytest.raises(UnsafeArchive, match="more than was allowed"):
        unpack(archive(directory("."), member("f", bytes(2000))), guarded, max_bytes=1999)


def test_a_declared_terabyte_is_refused_before_it_comes(guarded: Path) -> None:
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    header = info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(UnsafeArchive):
        unpack(archive(directory("."))[:512] + header, guarded)


def test_a_huge_extended_header_is_refused_before_it_comes(guarded: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 33
    with pytest.raises(UnsafeArchive, match="oversized"):
        unpack(archive(directory("."))[:512] + info.tobuf(tarfile.GNU_FORMAT), guarded)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_honest_archives_of_every_format(guarded: Path, format: int) -> None:
    unpack(
        archive(
            directory("."),
            directory("d"),
            member("d/" + "n" * 90, b"x" * 1025, mode=0o4755, mtime=1e9),
            link("d/up", "../top"),
            member("top", b""),
            format=format,
        ),
        guarded,
    )
    file = guarded / "d" / ("n" * 90)
    assert file.read_bytes() == b"x" * 1025
    assert file.stat().st_mode & 0o7777 == 0o755
    assert file.stat().st_mtime == 1e9
    assert os.readlink(guarded / "d" / "up") == "../top"
    assert (guarded / "top").read_bytes() == b""


def test_a_file_older_than_1970_is_of_1970(guarded: Path) -> None:
    unpack(archive(directory("."), member("old", b"x", mtime=-2e9)), guarded)
    assert (guarded / "old").stat().st_mtime == 0


def test_links_in_the_target_are_replaced_not_followed(guarded: Path) -> None:
    guarded.mkdir()
    (guarded / "f").symlink_to("../outside/file")
    (guarded / "d").symlink_to("../outside")
    unpack(archive(directory("."), member("f", b"theirs")), guarded)
    assert (guarded / "f").read_bytes() == b"theirs"
    with pytest.raises(UnsafeArchive):
        unpack(archive(directory("."), member("d/new", b"x")), guarded)
    check_cage(guarded)


def test_a_single_file_goes_to_the_exact_path(guarded: Path) -> None:
    unpack(archive(member("any-name", b"data", mode=0o700)), guarded)
    assert guarded.read_bytes() == b"data"
    with pytest.raises(FileError):
        unpack(archive(member("f", b"data")), guarded.parent / "outside")


def test_a_file_cut_short_is_removed(guarded: Path) -> None:
    with pytest.raises(UnsafeArchive):
        unpack(archive(member("f", bytes(5000)))[:3000], guarded)
    assert not guarded.exists()


def test_two_files_are_not_one(guarded: Path) -> None:
    with pytest.raises((UnsafeArchive, FileError)):
        unpack(archive(member("f", b"1"), member("g", b"2")), guarded)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_archives_stay_in_the_cage(guarded: Path, data: st.DataObject) -> None:
    good = bytearray(
        archive(directory("."), directory("a"), member("a/f", b"x" * 700), link("a/l", "f"))
    )
    for _ in range(data.draw(st.integers(1, 20))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnsafeArchive, FileError):
        unpack(bytes(good), guarded)
    check_cage(guarded)


NAMES = st.lists(
    st.sampled_from(["..", ".", "a", "b", "outside", "file", "", "/"]), min_size=1, max_size=4
).map("/".join)
MEMBERS = st.lists(
    st.tuples(
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]),
        NAMES,
        NAMES,
    ),
    max_size=8,
)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(members=MEMBERS)
def test_no_combination_of_links_leads_outside(
    guarded: Path, members: list[tuple[bytes, str, str]]
) -> None:
    made = [
        member(name, b"evil" if type == tarfile.REGTYPE else b"", type=type, linkname=target)
        for type, name, target in members
    ]
    shutil.rmtree(guarded, ignore_errors=True)
    with contextlib.suppress(UnsafeArchive, FileError, OSError):
        unpack(archive(directory("."), *made), guarded)
    check_cage(guarded)
    for path in filter(Path.is_symlink, guarded.rglob("*")):
        if not is_loop(path):
            assert Path(os.path.realpath(path)).is_relative_to(guarded), os.readlink(path)


def is_loop(path: Path) -> bool:
    """Tell whether a link leads to itself, hence nowhere."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def test_packing_refuses_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe"):
        list(pack(tmp_path))
    with pytest.raises(FileError, match="does not exist"):
        list(pack(tmp_path / "absent"))


def test_packing_is_in_bounded_pieces_and_unpacks_to_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "big").write_bytes(os.urandom(700_001))
    (source / "loop").symlink_to(".")
    pieces = list(pack(source))
    assert max(map(len, pieces)) <= 256 * 1024
    unpack(b"".join(pieces), tmp_path / "copy")
    assert (tmp_path / "copy" / "big").read_bytes() == (source / "big").read_bytes()
    assert everything_below(tmp_path / "copy") == {"empty", "big", "loop"}


def test_a_file_that_grows_or_shrinks_while_it_is_packed_tears_nothing(tmp_path: Path) -> None:
    grows, shrinks = tmp_path / "grows", tmp_path / "shrinks"
    grows.write_bytes(b"x" * 10)
    shrinks.write_bytes(b"y" * 100_000)
    pieces = []
    for piece in pack(tmp_path):
        pieces.append(piece)
        grows.write_bytes(b"x" * (grows.stat().st_size + 1000))
        shrinks.write_bytes(b"y" * (shrinks.stat().st_size - 1000))
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        contents = {info.name: tar.extractfile(info) for info in tar}
        assert list(contents) == [".", "grows", "shrinks"]
        assert set((contents["grows"] or io.BytesIO()).read()) == set(b"x")
    assert b"".join(pieces).endswith(bytes(1024))


def test_a_link_to_a_directory_is_packed_as_the_directory(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("source")
    unpack(b"".join(pack(tmp_path / "link")), tmp_path / "target")
    assert (tmp_path / "target" / "file").read_bytes() == b"data"
