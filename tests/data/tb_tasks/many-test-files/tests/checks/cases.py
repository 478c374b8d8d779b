"""One check per fact."""

import json
from pathlib import Path

EXPECTED = json.loads((Path(__file__).parent.parent / "data/expected.json").read_text())


def test_is_json(path):
    json.loads(path.read_text())


def test_has_all_keys(path):
    assert sorted(json.loads(path.read_text())) == sorted(EXPECTED)


def test_values_are_right(path):
    assert json.loads(path.read_text()) == EXPECTED
