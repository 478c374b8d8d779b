import pytest

from hermes_rl.sandbox import Sandbox


async def content(sandbox: Sandbox, path: str) -> bytes:
    return await sandbox.read(path, max_bytes=1 << 20)


async def test_a_replacement_returns_its_diff(call, sandbox: Sandbox) -> None:
    await sandbox.write("code.py", b"def f():\n    return 1\n")
    result = await call(
        "patch", mode="replace", path="code.py", old_string="return 1", new_string="return 2"
    )
    path = result["resolved_path"]
    assert result == {
        "success": True,
        "diff": f"--- a{path}\n+++ b{path}\n@@ -1,2 +1,2 @@\n def f():\n-    return 1\n"
        "+    return 2\n",
        "files_modified": [path],
        "lint": {"status": "ok", "output": ""},
        "resolved_path": path,
    }
    assert await content(sandbox, "code.py") == b"def f():\n    return 2\n"


async def test_mode_defaults_to_replace(call, sandbox: Sandbox) -> None:
    await sandbox.write("f", b"a")
    assert (await call("patch", path="f", old_string="a", new_string="b"))["success"] is True


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\n", b"\xef\xbb\xbfone\r\n2\r\nII\r\n"),
        (b"one\ntwo\n", b"one\n2\nII\n"),
        (b"one\r\ntwo\n", b"one\r\n2\nII\n"),
        (b"caf\xe9\ntwo\n", b"caf\xe9\n2\nII\n"),
        (b"one\ntwo", b"one\n2\nII"),
    ],
    ids=["bom-crlf", "lf", "mixed", "latin-1", "no-final-line-end"],
)
async def test_what_is_not_edited_keeps_every_byte(
    call, sandbox: Sandbox, before: bytes, after: bytes
) -> None:
    await sandbox.write("f", before)
    result = await call("patch", path="f", old_string="two", new_string="2\nII")
    assert result["success"] is True
    assert await content(sandbox, "f") == after


async def test_mode_and_owner_are_kept(call, sandbox: Sandbox) -> None:
    await call("terminal", command="echo a > s.sh; chmod 751 s.sh")
    await call("patch", path="s.sh", old_string="a", new_string="b")
    assert (await call("terminal", command="stat -c %a s.sh"))["output"] == "751"


async def test_a_mismatch_suggests_and_counts(call, sandbox: Sandbox) -> None:
    await sandbox.write("f", b"alpha = 1\nbeta = 2\n")
    bad = {"path": "f", "old_string": "alpha = 77777", "new_string": "x"}
    first = await call("patch", **bad)
    assert first["success"] is False
    assert first["error"].startswith("Could not find a match for old_string in the file")
    assert "   1| alpha = 1" in first["error"]
    assert "read_file" in first["_hint"]
    await call("patch", **bad)
    assert "failure #3 in a row" in (await call("patch", **bad))["_hint"]
    await call("patch", path="f", old_string="beta", new_string="gamma")
    assert "failure" not in (await call("patch", **bad))["_hint"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "replace"}, "path required"),
        ({"mode": "replace", "path": "f"}, "old_string and new_string required"),
        ({"mode": "patch"}, "patch content required"),
        ({"mode": "weird"}, "must be one of replace, patch"),
        ({"path": "f", "old_string": "a", "new_string": "a"}, "identical"),
        ({"path": "f", "old_string": "", "new_string": "a"}, "cannot be empty"),
        ({"path": "f", "old_string": "x", "new_string": "y"}, "Found 2 matches"),
        ({"path": "nope", "old_string": "x", "new_string": "y"}, "No such file"),
        ({"path": ".", "old_string": "x", "new_string": "y"}, "Is a directory"),
        ({"path": "bin", "old_string": "x", "new_string": "y"}, "binary file"),
    ],
)
async def test_mistakes_are_named(call, sandbox: Sandbox, arguments: dict, expected: str) -> None:
    await sandbox.write("f", b"x x")
    await sandbox.write("bin", b"\0x")
    assert expected in (await call("patch", **arguments))["error"]
    assert await content(sandbox, "f") == b"x x"


async def test_new_syntax_errors_are_told_from_old_ones(call, sandbox: Sandbox) -> None:
    await sandbox.write("a.py", b"x = 1\n")
    broken = await call("patch", path="a.py", old_string="= 1", new_string="= (")
    assert broken["lint"]["status"] == "error"
    assert "message" not in broken["lint"]
    still = await call("patch", path="a.py", old_string="x", new_string="y")
    assert "before this edit too" in still["lint"]["message"]


async def test_a_patch_over_several_files(call, sandbox: Sandbox) -> None:
    await sandbox.write("code.py", b"def f():\n    return 1\n")
    await sandbox.write("old.txt", b"gone")
    await sandbox.write("m.txt", b"moved\n")
    result = await call(
        "patch",
        mode="patch",
        patch="*** Begin Patch\n*** Update File: code.py\n@@ def f(): @@\n-    return 1\n"
        "+    return 2\n*** Add File: d/added.txt\n+one\n+two\n*** Delete File: old.txt\n"
        "*** Move File: m.txt -> e/n.txt\n*** End Patch",
    )
    assert result["success"] is True
    assert [path.rpartition("/")[2] for path in result["files_modified"]] == [
        "code.py", "added.txt", "old.txt", "m.txt", "n.txt",
    ]  # fmt: skip
    assert result["files_created"] == ["d/added.txt"]
    assert result["files_deleted"] == ["old.txt"]
    assert result["lint"]["code.py"] == {"status": "ok", "output": ""}
    assert "+    return 2" in result["diff"]
    assert await content(sandbox, "d/added.txt") == b"one\ntwo\n"
    assert await content(sandbox, "e/n.txt") == b"moved\n"
    assert (await call("terminal", command="ls"))["output"].split() == ["code.py", "d", "e"]


async def test_an_update_may_move_and_keeps_the_mode(call, sandbox: Sandbox) -> None:
    await call("terminal", command="echo a > s; chmod 755 s")
    await call("patch", mode="patch", patch="*** Update File: s\n*** Move to: t\n-a\n+b")
    assert (await call("terminal", command="ls; stat -c %a t; cat t"))["output"] == "t\n755\nb"


async def test_nothing_is_written_if_any_part_does_not_fit(call, sandbox: Sandbox) -> None:
    await sandbox.write("a", b"x\n")
    result = await call(
        "patch",
        mode="patch",
        patch="*** Update File: a\n-x\n+y\n*** Update File: b\n-x\n+y\n*** Add File: a\n+z\n"
        "*** Delete File: c\n*** Move File: a -> a",
    )
    assert result["success"] is False
    assert result["error"].startswith("Patch validation failed (no files were modified):\n")
    assert "• b: file not found" in result["error"]
    assert "• a: the file exists already" in result["error"]
    assert "• c: file not found" in result["error"]
    assert "• a -> a: the target exists already" in result["error"]
    assert await content(sandbox, "a") == b"x\n"


async def test_adding_never_overwrites(call, sandbox: Sandbox) -> None:
    await sandbox.write("a", b"precious")
    result = await call("patch", mode="patch", patch="*** Add File: a\n+new")
    assert "exists already" in result["error"]
    assert await content(sandbox, "a") == b"precious"


async def test_later_parts_build_on_earlier_ones(call, sandbox: Sandbox) -> None:
    await sandbox.write("a", b"x\ny\n")
    result = await call(
        "patch",
        mode="patch",
        patch="*** Update File: a\n-x\n+1\n*** Update File: a\n 1\n-y\n+2\n*** Move File: a -> b\n"
        "*** Add File: a\n+new",
    )
    assert result["success"] is True
    assert await content(sandbox, "b") == b"1\n2\n"
    assert await content(sandbox, "a") == b"new\n"


async def test_deleting_needs_no_python(call, sandbox: Sandbox) -> None:
    await call("terminal", command="mkdir -p bin; for p in python python3; do printf '#!/bin/sh\\n"
               "exit 9' > bin/$p; chmod +x bin/$p; done; export PATH=$PWD/bin:$PATH")  # fmt: skip
    await sandbox.write("-odd 'name'", b"x")
    result = await call("patch", mode="patch", patch="*** Delete File: -odd 'name'")
    assert result["success"] is True
    assert (await call("terminal", command="ls"))["output"] == "bin"


async def test_a_write_that_fails_half_way_says_what_was_done(call, sandbox: Sandbox) -> None:
    await sandbox.write("a", b"x\n")
    await call("terminal", command="echo file > blocked")
    result = await call(
        "patch", mode="patch", patch="*** Update File: a\n-x\n+y\n*** Add File: /proc/no/b\n+z"
    )
    assert result["success"] is False
    if result["error"].startswith("Apply phase failed"):
        assert [path.rpartition("/")[2] for path in result["files_modified"]] == ["a"]
        assert await content(sandbox, "a") == b"y\n"
    else:
        assert "no files were modified" in result["error"]
        assert await content(sandbox, "a") == b"x\n"


async def test_a_large_deleted_file_is_not_shown(call) -> None:
    await call("terminal", command="head -c 5000000 /dev/zero > big; head -c 99 /dev/zero > bin")
    result = await call("patch", mode="patch", patch="*** Delete File: big\n*** Delete File: bin")
    assert result["success"] is True
    assert result["diff"].count("# Deleted: ") == 2
