import enum

import orjson
import pytest

from hermes_rl.runlog.encoding import encode
from hermes_rl.runlog.files import transcript_name
from hermes_rl.types import ToolError


def test_a_line_is_json_and_ends_with_one_newline() -> None:
    assert encode({"a": "x\ny"}) == b'{"a":"x\\ny"}\n'


@pytest.mark.parametrize(
    "value", ["\ud800 lone", {"k\udfff": ["\ud83d"]}, [{"deep": ("\udc00",)}], {1: {2}}]
)
def test_what_utf8_or_json_cannot_hold_is_written_readably(value: object) -> None:
    orjson.loads(encode(value))


class _Wordless:
    def __str__(self) -> str:
        raise ValueError("no words")


class _Colour(enum.Enum):
    RED = "\ud800"


def _deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


IN_ITSELF: dict[str, object] = {}
IN_ITSELF |= {"again": IN_ITSELF, "and again": [IN_ITSELF, IN_ITSELF]}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"n": 2**70}, '{"n":"1180591620717411303424"}'),
        ({2**70: -(2**70)}, '{"1180591620717411303424":"-1180591620717411303424"}'),
        (ToolError(1, "f", "\ud800", "", ""), '"arguments":"?"'),
        ([_Colour.RED], '["?"]'),
        ([_Wordless()], "_Wordless without a text: ValueError"),
        (_deep(400), "nested too deeply"),
        (IN_ITSELF, "nested too deeply"),
        (b"\xff", "xff"),
    ],
    ids=["big", "big-key", "dataclass", "enum", "wordless", "deep", "in-itself", "bytes"],
)
def test_no_value_of_an_author_ends_the_log(value: object, written: str) -> None:
    line = encode(value)
    orjson.loads(line)
    assert written in line.decode()


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
