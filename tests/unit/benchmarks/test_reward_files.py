"""The golden table of reward files: what is written and what it is worth."""

from __future__ import annotations

import pytest

from hermes_rl.benchmarks.reward_files import RewardFiles
from hermes_rl.errors import RewardUnreadable


@pytest.mark.parametrize(
    ("as_json", "as_text", "expected"),
    [
        (None, b"1", 1.0),
        (None, b"1\n", 1.0),
        (None, b" 0.25 \n", 0.25),
        (None, b"1e-1", 0.1),
        (None, b"-1", -1.0),
        (b'{"reward": 0.5}', None, 0.5),
        (b'{"score": 1}', None, 1.0),
        (b'{"a": 0, "reward": 1, "b": 2}', None, 1.0),
        (b'{"reward": 0}', b"1", 0.0),
        (b'{"reward": 1}', b"nonsense", 1.0),
    ],
)
def test_readable_rewards(as_json: bytes | None, as_text: bytes | None, expected: float) -> None:
    files = RewardFiles(reward_json=as_json, reward_txt=as_text)
    assert files.has_reward
    assert files.value() == expected
    assert expected in files.rewards().values()


@pytest.mark.parametrize(
    ("as_json", "as_text", "message"),
    [
        (None, b"", "no number"),
        (None, b"one", "'one', which is no number"),
        (None, b"nan", "not finite"),
        (None, b"inf", "not finite"),
        (None, b"\xff", "no number"),
        (b"", None, "not valid JSON"),
        (b"{}", None, "object of finite numbers"),
        (b"1", None, "object of finite numbers"),
        (b'{"reward": "1"}', None, "object of finite numbers"),
        (b'{"reward": true}', None, "object of finite numbers"),
        (b'{"reward": NaN}', None, "not valid JSON"),
        (b'{"reward": {"a": 1}}', None, "object of finite numbers"),
        (b'{"a": 1, "b": 0}', None, "none of them 'reward'"),
        (b"broken", b"1", "not valid JSON"),
    ],
)
def test_what_is_no_reward_is_an_error_and_no_zero(
    as_json: bytes | None, as_text: bytes | None, message: str
) -> None:
    files = RewardFiles(reward_json=as_json, reward_txt=as_text)
    assert files.has_reward
    with pytest.raises(RewardUnreadable, match=message):
        files.value()
