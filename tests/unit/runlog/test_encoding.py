import orjson
import pytest

from hermes_rl.runlog.encoding import encode
from hermes_rl.runlog.files import transcript_name


def test_a_line_is_json_and_ends_with_one_newline() -> None:
    assert encode({"a": "x\ny"}) == b'{"a":"x\\ny"}\n'


@pytest.mark.parametrize(
    "value", ["\ud800 lone", {"k\udfff": ["\ud83d"]}, [{"deep": ("\udc00",)}], {1: {2}}]
)
def test_what_utf8_or_json_cannot_hold_is_written_readably(value: object) -> None:
    orjson.loads(encode(value))


@pytest.mark.parametrize(
    "task_id",
    ["fix-git", "org/task", "..", ".", "../../etc/passwd", "ünï cøde", "x" * 500, "a%2Fb", "-"],
)
def test_transcripts_stay_in_their_folder_whatever_the_task_is_called(task_id: str) -> None:
    parts = transcript_name(task_id, 3).split("/")
    assert len(parts) == 3
    assert parts[0] == "transcripts"
    assert parts[1] not in ("", ".", "..")
    assert not parts[1].startswith(".")
    assert len(parts[1].encode()) < 255
    assert parts[2] == "3.jsonl"


def test_different_tasks_have_different_transcripts() -> None:
    ids = ["a/b", "a%2Fb", "a b", "x" * 499, "x" * 500, "..", "%2E.", ".", "%2E"]
    assert len({transcript_name(task_id, 0) for task_id in ids}) == len(ids)
