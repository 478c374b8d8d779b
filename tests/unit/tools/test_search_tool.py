import shutil
from pathlib import Path

import anyio
import orjson
import pytest
import pytest_asyncio

from hermes_rl.sandbox import Backend, Sandbox, SandboxSpec
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher

SEARCHES = [
    {"pattern": r"def \w+|return\b"},
    {"pattern": "def", "context": 1, "path": "pkg"},
    {"pattern": "def", "output_mode": "count"},
    {"pattern": "def", "output_mode": "files_only", "file_glob": "pkg/*.py"},
    {"pattern": "*.py", "target": "files"},
    {"pattern": "(?i)DEF", "path": "pkg/sub/c.py"},
]
FORMAT = (
    "one block per file: its path on a line of its own, then its matches as '  LINE: TEXT' rows"
)


@pytest_asyncio.fixture
async def tree(sandbox: Sandbox) -> None:
    files = {
        "pkg/a.py": b"import os\n\ndef first():\n    return 1\n",
        "pkg/b.py": b"".join(b"def f%d(): pass\n" % n for n in range(6)),
        "pkg/sub/c.py": b"def deep(): pass\n",
        "pkg/data.bin": b"def binary()\0\n",
        ".hidden/d.py": b"def hidden(): pass\n",
        "pkg/.env": b"def env\n",
        "we ird:1:x-2-.py": b"def odd(): pass\r\n",
        "ign.py": b"nothing here\n",
        ".gitignore": b"ign.py\n",
        "long.txt": b"start " + b"x" * 9_000 + b"\n",
    }
    for path, data in files.items():
        await sandbox.write(path, data)


async def test_few_matches_are_a_list(call, tree: None) -> None:
    result = await call("search_files", pattern=r"return \d|deep")
    assert result == {
        "total_count": 2,
        "matches": [
            {"path": "./pkg/a.py", "line": 4, "content": "    return 1"},
            {"path": "./pkg/sub/c.py", "line": 1, "content": "def deep(): pass"},
        ],
    }


async def test_many_matches_are_grouped_by_file(call, tree: None) -> None:
    result = await call("search_files", pattern=r"^def \w+\(", path="pkg")
    assert (result["total_count"], result["matches_format"]) == (8, FORMAT)
    rows = result["matches_text"].split("\n")
    assert rows[:4] == ["pkg/a.py", "  3: def first():", "pkg/b.py", "  1: def f0(): pass"]
    assert rows[-2:] == ["pkg/sub/c.py", "  1: def deep(): pass"]


async def test_totals_are_true_and_pages_complete(call, tree: None) -> None:
    seen, offset = [], 0
    while True:
        page = await call("search_files", pattern="def", limit=4, offset=offset)
        assert page["total_count"] == 9
        seen += [(match["path"], match["line"]) for match in page["matches"]]
        offset += len(page["matches"])
        if "truncated" not in page:
            break
        assert f"Use offset={offset}" in page["hint"]
    assert len(seen) == len(set(seen)) == 9
    past = await call("search_files", pattern="def", offset=50)
    assert (past["matches"], past["total_count"]) == ([], 9)
    assert "past the last of 9" in past["hint"]


async def test_hidden_and_binary_files_are_skipped(call, tree: None) -> None:
    names = await call("search_files", pattern="def", output_mode="files_only")
    assert names == {
        "total_count": 4,
        "files": ["./pkg/a.py", "./pkg/b.py", "./pkg/sub/c.py", "./we ird:1:x-2-.py"],
    }
    assert (await call("search_files", pattern="hidden", path=".hidden"))["total_count"] == 1
    assert (await call("search_files", pattern="def", file_glob=".env*"))["matches"][0][
        "path"
    ] == "./pkg/.env"


async def test_gitignore_changes_nothing(call, tree: None) -> None:
    await call("terminal", command="mkdir .git")
    assert (await call("search_files", pattern="nothing here"))["total_count"] == 1


async def test_counts_are_by_file(call, tree: None) -> None:
    result = await call("search_files", pattern="def f", output_mode="count")
    assert result == {"total_count": 7, "counts": {"./pkg/a.py": 1, "./pkg/b.py": 6}}
    page = await call("search_files", pattern="def f", output_mode="count", limit=1)
    assert (page["total_count"], page["counts"], page["truncated"]) == (7, {"./pkg/a.py": 1}, True)


async def test_odd_names_and_line_ends_are_read_right(call, tree: None) -> None:
    result = await call("search_files", pattern="odd")
    assert result["matches"] == [
        {"path": "./we ird:1:x-2-.py", "line": 1, "content": "def odd(): pass"}
    ]


async def test_long_lines_are_cut(call, tree: None) -> None:
    (match,) = (await call("search_files", pattern="^start"))["matches"]
    assert match["content"] == "start " + "x" * 494 + "..."


async def test_context_lines_are_marked_and_not_counted(call, tree: None) -> None:
    result = await call("search_files", pattern="first", context=1)
    assert result == {
        "total_count": 1,
        "matches": [
            {"path": "./pkg/a.py", "line": 2, "content": "", "context": True},
            {"path": "./pkg/a.py", "line": 3, "content": "def first():"},
            {"path": "./pkg/a.py", "line": 4, "content": "    return 1", "context": True},
        ],
    }
    page = await call("search_files", pattern="def f[0-9]", path="pkg/b.py", context=1, limit=5)
    assert page["total_count"] == 6
    assert page["matches_text"].split("\n")[-1] == "  5: def f4(): pass"


async def test_globs_choose_files(call, tree: None) -> None:
    async def found(glob: str) -> int:
        return (await call("search_files", pattern="def", file_glob=glob))["total_count"]

    assert await found("*.py") == 9
    assert await found("a.*") == 1
    assert await found("pkg/*.py") == 7
    assert await found("pkg/**/*.py") == 8
    assert await found("{a,c}.py") == 2
    assert await found("*.txt") == 0


async def test_files_are_found_newest_first(call, tree: None) -> None:
    await call("terminal", command="touch -d '2030-01-01' pkg/a.py; touch -d '2029-01-01' ign.py")
    result = await call("search_files", pattern="*.py", target="files")
    assert result["total_count"] == 5
    assert result["files"][:2] == ["./pkg/a.py", "./ign.py"]
    page = await call("search_files", pattern="*.py", target="find", limit=1, offset=1)
    assert (page["files"], page["truncated"], page["total_count"]) == (["./ign.py"], True, 5)


@pytest.mark.parametrize(
    ("pattern", "path", "count"),
    [
        ("pkg/*.py", ".", 2),
        ("pkg/**/*.py", ".", 3),
        ("**/*.py", ".", 5),
        ("*.{py,txt}", ".", 6),
        ("**/.env", ".", 1),
        (".*", ".", 2),
        ("sub/*.py", "pkg", 1),
        ("nothing*", ".", 0),
    ],
)
async def test_path_globs_of_files(call, tree: None, pattern: str, path: str, count: int) -> None:
    result = await call("search_files", pattern=pattern, path=path, target="files")
    assert result["total_count"] == count, result


async def test_an_absolute_glob_names_its_directory(call, tree: None) -> None:
    root = (await call("terminal", command="pwd"))["output"]
    result = await call("search_files", pattern=f"{root}/pkg/*.py", target="files")
    assert sorted(result["files"]) == [f"{root}/pkg/a.py", f"{root}/pkg/b.py"]


async def test_a_single_file_can_be_searched(call, tree: None) -> None:
    result = await call("search_files", pattern="def", path="pkg/a.py")
    assert result["matches"] == [{"path": "pkg/a.py", "line": 3, "content": "def first():"}]
    nothing = await call("search_files", pattern="zzz", path="pkg/a.py")
    assert nothing == {"total_count": 0, "matches": []}


async def test_links_are_not_followed(call, tree: None) -> None:
    await call("terminal", command="ln -s pkg link; ln -s pkg/a.py l.py")
    assert (await call("search_files", pattern="first"))["total_count"] == 1
    assert (await call("search_files", pattern="first", path="link"))["total_count"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"pattern": "x", "path": "pgk"}, "Path not found: pgk. Similar paths: pkg"),
        ({"pattern": "(x"}, "Bad pattern: this parenthesis is never closed"),
        ({"pattern": "[[:nope:]]"}, "Bad pattern: "),
        ({"pattern": ""}, "The pattern is empty"),
        ({"pattern": "*", "target": "files", "path": "ign.py"}, "ign.py is a file"),
        ({"pattern": "x", "target": "else"}, "must be one of content, files"),
    ],
)
async def test_mistakes_are_named(call, tree: None, arguments: dict, expected: str) -> None:
    result = await call("search_files", **arguments)
    assert expected in result["error"]


async def test_a_page_is_bounded_and_always_json(tools: ToolDispatcher, call) -> None:
    await call("terminal", command="yes 'x\"\\\\ \x01 line of text that is long' | head -5000 > f")
    result = await tools.call("search_files", '{"pattern": "x", "limit": 1000}', "1")
    page = orjson.loads(result.content)
    assert len(result.content) < 100_000
    assert page["total_count"] == 5000
    assert page["truncated"] is True


async def test_a_flood_of_matches_is_counted(call) -> None:
    await call("terminal", command="seq 1 300000 > numbers")
    result = await call("search_files", pattern=".", limit=1)
    assert (result["total_count"], len(result["matches"])) == (300_000, 1)


async def test_an_empty_directory_has_no_matches(call) -> None:
    assert await call("search_files", pattern="x") == {"total_count": 0, "matches": []}
    assert await call("search_files", pattern="*", target="files") == {
        "total_count": 0,
        "files": [],
    }


async def test_busybox_gives_the_same_results(backend: Backend, call_with, tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox")
    programs = tmp_path / "bin"
    programs.mkdir()
    await anyio.run_process([busybox, "--install", "-s", str(programs)])
    small = await backend.create(SandboxSpec(env={"PATH": str(programs)}))
    usual = await backend.create(SandboxSpec())
    results = []
    for sandbox in (small, usual):
        call = call_with(ToolDispatcher(sandbox, list(NATIVE_TOOLS)))
        for path in ("pkg/a.py", "pkg/b.py", "pkg/sub/c.py", "odd-1-name.py", ".hidden/d.py"):
            await sandbox.write(path, f"x\ndef f{path[4:5]}(): pass\n\treturn\n".encode())
        await sandbox.exec("touch -d 2030-01-01 *.py pkg/*.py", timeout_s=10, session=None)
        found = [await call("search_files", **arguments) for arguments in SEARCHES]
        results.append(found)
        where = await sandbox.exec("command -v grep", timeout_s=10, session=None)
        assert where.text.startswith(str(programs)) is (sandbox is small)
    assert results[0] == results[1]
    assert all("error" not in result for result in results[0])
