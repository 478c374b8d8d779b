from pathlib import Path

import pytest

from hermes_rl.backends.log_tail import log_tail


def test_only_the_end_of_a_file_larger_than_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"the end")
    assert log_tail(path, 10) == b"\0\0\0the end"


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_short_log_is_returned_whole(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert log_tail(path, 10) == content
