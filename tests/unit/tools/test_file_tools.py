import pytest

from hermes_rl.sandbox import Sandbox


async def put(sandbox: Sandbox, path: str, data: bytes) -> None:
    await sandbox.write(path, data)


async def test_lines_come_with_numbers_and_no_phantom(call, sandbox: Sandbox) -> None:
    await put(sandbox, "a.txt", b"one\ntwo\nthree\n")
    assert await call("read_file", path="a.txt") == {
        "content": "1|one\n2|two\n3|three",
        "total_lines": 3,
        "file_size": 14,
        "truncated": False,
        "is_binary": False,
        "is_image": False,
    }


@pytest.mark.parametrize(
    ("data", "content", "total"),
    [
        (b"", "", 0),
        (b"\n", "1|", 1),
        (b"a", "1|a", 1),
        (b"a\nb", "1|a\n2|b", 2),
        (b"a\n\n", "1|a\n2|", 2),
        (b"a\r\nb\r\n", "1|a\r\n2|b\r", 2),
        (b"\xef\xbb\xbfa\n", "1|a", 1),
        ("é\n".encode(), "1|é", 1),
        (b"caf\xe9\n", "1|caf\ufffd", 1),
    ],
)
async def test_line_counts(call, sandbox: Sandbox, data: bytes, content: str, total: int) -> None:
    await put(sandbox, "f", data)
    result = await call("read_file", path="f")
    assert (result["content"], result["total_lines"]) == (content, total)


async def test_pages_say_how_to_go_on(call, sandbox: Sandbox) -> None:
    await put(sandbox, "f", b"".join(b"%d\n" % n for n in range(1, 3001)))
    page = await call("read_file", path="f")
    assert page["truncated"] is True
    assert page["hint"] == "Use offset=501 to continue reading (showing lines 1-500 of 3000)"
    page = await call("read_file", path="f", offset=2999, limit="50")
    assert (page["content"], page["truncated"]) == ("2999|2999\n3000|3000", False)
    page = await call("read_file", path="f", offset=-3, limit=0)
    assert page["content"] == "1|1"
    page = await call("read_file", path="f", limit=99_999)
    assert page["content"].endswith("\n2000|2000")


async def test_an_offset_past_the_end_shows_nothing_and_says_so(call, sandbox: Sandbox) -> None:
    await put(sandbox, "f", b"a\n")
    page = await call("read_file", path="f", offset=99)
    assert (page["content"], page["truncated"]) == ("", False)
    assert page["hint"] == "The file has 1 lines; offset=99 is past it."


async def test_long_lines_and_long_pages_are_cut(call, sandbox: Sandbox) -> None:
    await put(sandbox, "f", b"x" * 5_000 + b"\n")
    assert (await call("read_file", path="f"))["content"] == "1|" + "x" * 2_000 + "... [truncated]"
    await put(sandbox, "f", (b"y" * 1_500 + b"\n") * 400)
    page = await call("read_file", path="f")
    assert (page["truncated_by"], page["next_offset"]) == ("bytes", 67)
    assert "Use offset=67 to continue" in page["hint"]
    assert len(page["content"]) <= 100_000


async def test_files_too_large_to_move_are_cut_in_the_sandbox(call) -> None:
    await call("terminal", command="seq 1 1000000 > big; printf end >> big")
    page = await call("read_file", path="big", offset=700_000, limit=2)
    assert page["content"] == "700000|700000\n700001|700001"
    assert (page["total_lines"], page["file_size"]) == (1_000_001, 6_888_899)
    assert page["truncated"] is True
    last = await call("read_file", path="big", offset=1_000_000)
    assert last["content"] == "1000000|1000000\n1000001|end"
    assert last["truncated"] is False


async def test_large_binaries_are_binary(call) -> None:
    await call("terminal", command="head -c 5000000 /dev/zero > zeros")
    assert (await call("read_file", path="zeros"))["is_binary"] is True


async def test_binary_is_judged_by_content_and_not_by_name(call, sandbox: Sandbox) -> None:
    await put(sandbox, "table.dat", b"plain text\n")
    assert (await call("read_file", path="table.dat"))["content"] == "1|plain text"
    await put(sandbox, "text.txt", b"\0\1\2")
    result = await call("read_file", path="text.txt")
    assert (result["is_binary"], result["is_image"], result["content"]) == (True, False, "")
    await put(sandbox, "p.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert (await call("read_file", path="p.png"))["is_image"] is True


async def test_a_missing_file_suggests_similar_ones(call, sandbox: Sandbox) -> None:
    await put(sandbox, "d/report.txt", b"x")
    result = await call("read_file", path="d/reprot.txt")
    assert result["error"] == "File not found: d/reprot.txt"
    assert result["similar_files"] == ["d/report.txt"]
    assert "similar_files" not in await call("read_file", path="nowhere/at/all")


async def test_directories_and_devices_are_errors(call) -> None:
    await call("terminal", command="mkdir d; mkfifo pipe")
    assert "d is a directory" in (await call("read_file", path="d"))["error"]
    for path in ("/dev/zero", "pipe"):
        assert "not a regular file" in (await call("read_file", path=path))["error"]


async def test_the_same_file_can_be_read_again_and_again(call, sandbox: Sandbox) -> None:
    await put(sandbox, "f", b"a\n")
    for _ in range(5):
        assert (await call("read_file", path="f"))["content"] == "1|a"


async def test_paths_follow_the_session_and_home(call) -> None:
    await call("terminal", command="mkdir -p s; cd s; echo in-s > f; echo at-home > ~/g")
    assert (await call("read_file", path="f"))["content"] == "1|in-s"
    assert (await call("read_file", path="~/g"))["content"] == "1|at-home"
    written = await call("write_file", path="h", content="x")
    assert written["resolved_path"].endswith("/s/h")


async def test_files_of_proc_are_read(call) -> None:
    assert (await call("read_file", path="/proc/self/status"))["content"].startswith("1|Name:")


async def test_write_file_reports_what_it_did(call) -> None:
    result = await call("write_file", path="p/q/new.py", content="x = 1\n")
    assert result == {
        "bytes_written": 6,
        "dirs_created": True,
        "lint": {"status": "ok", "output": ""},
        "resolved_path": result["resolved_path"],
        "files_modified": [result["resolved_path"]],
    }
    assert result["resolved_path"].endswith("/p/q/new.py")
    assert (await call("write_file", path="p/q/two.txt", content=""))["dirs_created"] is False
    assert (await call("write_file", path="three.txt", content=""))["dirs_created"] is False


@pytest.mark.parametrize("path", ["", "d/", "d", "."])
async def test_a_path_of_a_directory_is_an_error(call, path: str) -> None:
    await call("terminal", command="mkdir d")
    result = await call("write_file", path=path, content="x")
    assert result["bytes_written"] == 0
    assert "directory" in result["error"]


async def test_content_is_written_exactly(call, sandbox: Sandbox) -> None:
    await put(sandbox, "f", b"\xef\xbb\xbfold\r\n")
    await call("write_file", path="f", content="é\n$HOME `x` 'y'\r\nno end")
    data = await sandbox.read("f", max_bytes=100)
    assert data == "é\n$HOME `x` 'y'\r\nno end".encode()


async def test_broken_python_is_written_with_its_error(call, sandbox: Sandbox) -> None:
    result = await call("write_file", path="a.py", content="def f(:\n")
    assert result["bytes_written"] == 8
    assert result["lint"]["status"] == "error"
    assert await sandbox.read("a.py", max_bytes=100) == b"def f(:\n"


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.yml", "a.toml"])
async def test_broken_configuration_is_refused(call, sandbox: Sandbox, name: str) -> None:
    await put(sandbox, name, b"old")
    result = await call("write_file", path=name, content="{[ broken: 1\n = ")
    assert (result["bytes_written"], result["dirs_created"]) == (0, False)
    assert "NOT created or modified" in result["error"]
    assert await sandbox.read(name, max_bytes=100) == b"old"
    assert (await call("write_file", path=name, content=""))["bytes_written"] == 0
    assert await sandbox.read(name, max_bytes=100) == b""


async def test_pasted_line_numbers_are_written_with_a_warning(call) -> None:
    result = await call("write_file", path="f", content="1|a\n2|b\n3|c\n")
    assert result["bytes_written"] == 12
    assert "begins its lines with 'N|'" in result["_warning"]
    assert "_warning" not in await call("write_file", path="f", content="a|1\nb|2\nc|3\n")


async def test_content_that_is_no_text_is_an_error(call) -> None:
    result = await call("write_file", path="f.json", content={"a": 1})
    assert "Parameter 'content' must be string, not an object" in result["error"]


async def test_no_linter_is_ever_run_in_the_sandbox(call) -> None:
    await call(
        "terminal",
        command="mkdir bin; for p in npx node tsc gofmt go rustfmt python3; do "
        "printf '#!/bin/sh\\ntouch ~/ran-$0' > bin/$p; chmod +x bin/$p; done; "
        "export PATH=$PWD/bin:$PATH",
    )
    for name in ("a.ts", "a.js", "a.go", "a.rs", "a.py"):
        assert "error" not in await call("write_file", path=name, content="x")
    assert "ran-" not in (await call("terminal", command="ls ~"))["output"]
