"""Files between sandbox and host: only what is meant, only where it is meant to go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes_rl.errors import FileError
from hermes_rl.legacy.carry import MAX_FILE_BYTES, RESULT_FILES, carried_in, carried_out
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.tools.processes import ProcessTable
from hermes_rl.tools.scope import Shell, ToolScope


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest.fixture
def scope(sandbox: FakeSandbox) -> ToolScope:
    shell = Shell(sandbox, start_cwd="/work")
    return ToolScope(sandbox=sandbox, shell=shell, processes=ProcessTable(sandbox, limit=1))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/cache/web").mkdir(parents=True)
    return tmp_path / "home"


@pytest.mark.parametrize("named", ["/work/a.png", "a.png", "file:///work/a.png"])
async def test_a_tool_sees_a_copy_of_the_sandboxs_file(
    sandbox: FakeSandbox, scope: ToolScope, home: Path, named: str
) -> None:
    sandbox.files["/work/a.png"] = b"pixels"
    given = {"image_url": named, "question": "?"}
    async with carried_in(scope, str(home), "vision_analyze", given) as changed:
        copy = Path(changed["image_url"])
        assert copy.read_bytes() == b"pixels"
        assert copy.is_relative_to(home / "cache")
        assert copy.suffix == ".png"
        assert changed["question"] == "?"
    assert not copy.exists()


async def test_a_file_of_the_host_is_not_seen(scope: ToolScope, home: Path) -> None:
    with pytest.raises(FileError):
        async with carried_in(
            scope, str(home), "video_analyze", {"video_url": "/etc/passwd", "question": "?"}
        ):
            pytest.fail("the tool would have run")


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("vision_analyze", "https://example.com/a.png"),
        ("vision_analyze", "data:image/png;base64,AAAA"),
        ("web_search", "/etc/passwd"),
    ],
)
async def test_addresses_and_other_tools_are_left_alone(
    scope: ToolScope, home: Path, tool: str, value: str
) -> None:
    given = {"image_url": value}
    async with carried_in(scope, str(home), tool, given) as changed:
        assert changed == given


async def test_a_file_that_a_tool_left_is_in_the_sandbox_under_the_name_that_is_told(
    sandbox: FakeSandbox, scope: ToolScope, home: Path
) -> None:
    page = home / "cache/web/page-1.md"
    page.write_bytes(b"all of it")
    text = f'read_file path="{page}" offset=3. Again: {page}.'
    copy = f"{RESULT_FILES}/page-1.md"
    assert await carried_out(scope, str(home), text) == (
        f'read_file path="{copy}" offset=3. Again: {copy}.'
    )
    assert sandbox.files[copy] == b"all of it"


async def test_what_is_in_no_cache_stays_on_the_host(
    sandbox: FakeSandbox, scope: ToolScope, home: Path
) -> None:
    (home / "state.db").write_bytes(b"others")
    (home / "config.yaml").write_bytes(b"keys")
    os.symlink("/etc/passwd", home / "cache/link.md")
    os.mkfifo(home / "cache/pipe.md")
    (home / "cache/large.md").touch()
    os.truncate(home / "cache/large.md", MAX_FILE_BYTES + 1)
    names = ["state.db", "config.yaml", "cache/link.md", "cache/pipe.md", "cache/large.md"]
    names += ["cache/../config.yaml", "cache/missing.md", "cache/web"]
    text = " ".join(f"{home}/{name}" for name in names)
    assert await carried_out(scope, str(home), text) == text
    assert sandbox.files == {}
