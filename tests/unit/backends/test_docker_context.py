"""Build contexts: what belongs to one, when two are the same, and the tar that is sent."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_rl.backends.docker_context import BuildContext
from hermes_rl.errors import ImageBuildFailed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    root.mkdir()
    _fill(root, {"Dockerfile": "FROM scratch\n", "app/main.py": "print()\n", "app/data.bin": "x"})
    return root


def _fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _names(root: Path) -> set[str]:
    return {name for name in BuildContext.scan(root).names if not (root / name).is_dir()}


def test_every_file_belongs_to_it(root: Path) -> None:
    assert _names(root) == {"Dockerfile", "app/main.py", "app/data.bin"}


def test_a_directory_without_a_dockerfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildFailed, match=f"{tmp_path} holds no Dockerfile"):
        BuildContext.scan(tmp_path)


@pytest.mark.parametrize(
    ("ignore", "left"),
    [
        ("app\n", set()),
        ("/app/\n", set()),
        ("*.pyc\n", {"app/main.py", "app/data.bin", "app/sub/x.bin"}),
        ("app/*.bin\n", {"app/main.py", "app/sub/x.bin"}),
        ("**/*.bin\n", {"app/main.py"}),
        ("**/sub\n", {"app/main.py", "app/data.bin"}),
        ("app/**\n!app/main.py\n", {"app/main.py"}),
        ("app\n!app/sub\n", {"app/sub/x.bin"}),
        ("# app\n\n", {"app/main.py", "app/data.bin", "app/sub/x.bin"}),
        ("app/ma?n.py\n", {"app/data.bin", "app/sub/x.bin"}),
        ("app/[a-e]*\n", {"app/main.py", "app/sub/x.bin"}),
        ("Dockerfile\n", {"app/main.py", "app/data.bin", "app/sub/x.bin"}),
        ("!\n/\n", {"app/main.py", "app/data.bin", "app/sub/x.bin"}),
    ],
)
def test_dockerignore_is_obeyed(root: Path, ignore: str, left: set[str]) -> None:
    _fill(root, {".dockerignore": ignore, "app/sub/x.bin": "y"})
    assert _names(root) == left | {"Dockerfile", ".dockerignore"}


def test_the_same_contents_have_the_same_digest(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    files = {"Dockerfile": "FROM scratch\n", "app/data.bin": "x", "app/main.py": "print()\n"}
    _fill(other, files)
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
    assert BuildContext.scan(other).digest() == BuildContext.scan(root).digest()


def _rename(root: Path) -> None:
    (root / "app/main.py").rename(root / "app/other.py")


def _change(root: Path) -> None:
    (root / "app/main.py").write_text("print(1)\n")


def _make_executable(root: Path) -> None:
    (root / "app/main.py").chmod(0o755)


def _link(root: Path) -> None:
    (root / "app/link").symlink_to("main.py")


@pytest.mark.parametrize("change", [_rename, _change, _make_executable, _link])
def test_any_change_that_a_build_sees_changes_the_digest(
    root: Path, change: Callable[[Path], None]
) -> None:
    before = BuildContext.scan(root)
    digest, fingerprint = before.digest(), before.fingerprint()
    change(root)
    after = BuildContext.scan(root)
    assert after.digest() != digest
    assert after.fingerprint() != fingerprint


def test_an_ignored_file_does_not_change_the_digest(root: Path) -> None:
    _fill(root, {".dockerignore": "notes\n"})
    before = BuildContext.scan(root).digest()
    _fill(root, {"notes/today": "something"})
    assert BuildContext.scan(root).digest() == before


def test_a_link_counts_by_its_target_not_by_what_it_leads_to(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("1")
    (root / "link").symlink_to("../outside")
    before = BuildContext.scan(root).digest()
    (tmp_path / "outside").write_text("2")
    assert BuildContext.scan(root).digest() == before


def test_the_tar_holds_exactly_the_context(root: Path) -> None:
    _fill(root, {"big": "0123456789abcdef" * 200_000, "näme": "ü"})
    (root / "app/link").symlink_to("main.py")
    (root / "app/main.py").chmod(0o751)
    os.mkfifo(root / "pipe")
    pieces = list(BuildContext.scan(root).tar())
    assert max(map(len, pieces)) <= 1 << 20
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        members = {member.name: member for member in archive}
        big = archive.extractfile("big")
        assert big is not None
        assert big.read() == (root / "big").read_bytes()
    assert set(members) == {
        "Dockerfile",
        "app",
        "app/data.bin",
        "app/link",
        "app/main.py",
        "big",
        "näme",
    }
    assert members["app/link"].linkname == "main.py"
    assert members["app/main.py"].mode == 0o751
    assert members["app"].isdir()


def test_a_file_that_shrinks_while_it_is_sent_fails_the_build(root: Path) -> None:
    (root / "big").write_bytes(bytes(3 << 20))
    pieces = BuildContext.scan(root).tar()
    while len(next(pieces)) < 1 << 20:
        pass
    os.truncate(root / "big", 1 << 20)
    with pytest.raises(ImageBuildFailed, match="big changed while it was sent"):
        list(pieces)
