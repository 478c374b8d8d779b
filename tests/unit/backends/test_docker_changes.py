"""Changes of a container: pieces of any size give the same list; a long one lets others run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends import docker_changes
from hermes_rl.backends.docker_changes import read_changes
from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.testing.loop_monitor import run_without_long_callbacks

WORDS = ("modified", "added", "deleted")
NASTY = st.sampled_from(['},{"', '},{"Path":"', "\\", '"', "a", "\n", '"Kind":1},{"Kind":0'])
PATHS = st.lists(NASTY, max_size=6).map(lambda parts: "/" + "".join(parts))
ENTRIES = st.lists(st.tuples(PATHS, st.sampled_from([0, 1, 2])), max_size=20)


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def answer(entries: list[tuple[str, int]], *, path_first: bool = True) -> bytes:
    rows: list[dict[str, object]] = [{"Path": path, "Kind": kind} for path, kind in entries]
    if not path_first:
        rows = [dict(reversed(row.items())) for row in rows]
    return orjson.dumps(rows) + b"\n"


@given(ENTRIES, st.integers(1, 60), st.integers(1, 100), st.booleans())
async def test_any_split_gives_the_same_list(
    entries: list[tuple[str, int]], size: int, batch_bytes: int, path_first: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docker_changes, "BATCH_BYTES", batch_bytes)
        changes = await read_changes(pieces(answer(entries, path_first=path_first), size))
    assert [(change.path, WORDS.index(change.kind)) for change in changes] == entries


@given(st.integers(1, 60))
async def test_one_path_can_be_left_out(size: int) -> None:
    body = answer([("/a", 1), ("/.hermes", 1), ("/.hermes/b", 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docker_changes, "BATCH_BYTES", 1)
        changes = await read_changes(pieces(body, size), without="/.hermes")
    assert [change.path for change in changes] == ["/a", "/.hermes/b"]


async def test_no_changes_are_none() -> None:
    assert await read_changes(pieces(b"null\n", 5)) == []


@pytest.mark.parametrize(
    "body", [b"", b"{}x", b'[{"Path":"/a"}]', b'[{"Path":"/a","Kind":7}]', b"[1]"]
)
async def test_what_is_no_list_of_changes_is_an_engine_failure(body: bytes) -> None:
    with pytest.raises(EngineFailure, match="no list of changes"):
        await read_changes(pieces(body, 9))


async def test_a_long_list_lets_others_run() -> None:
    body = answer([(f"/root/node_modules/package/lib/file{n}.js", 1) for n in range(100_000)])
    found = await run_without_long_callbacks(lambda: read_changes(pieces(body, 64 * 1024)))
    assert len(found) == 100_000
