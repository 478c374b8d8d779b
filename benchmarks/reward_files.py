"""What a verifier leaves behind: its reward and its test report.

Rules, as Harbor 0.26 has them (pinned by tests): ``reward.json`` (a flat object of finite numbers)
wins over ``reward.txt`` (one finite number); an unreadable one is an error and no zero. Of several
numbers in ``reward.json`` the one named ``reward`` counts, else they must be one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from hermes_rl.errors import RewardUnreadable
from hermes_rl.types import JSONObject

__all__ = ["RewardFiles", "parse_report", "parse_reward_json", "parse_reward_text"]

MAX_TESTS_KEPT = 200
"""Test outcomes kept in the evidence; the totals are always complete."""
MAX_NAME_CHARS = 200
MAX_COUNT = 1 << 53


@dataclass(slots=True, frozen=True, kw_only=True)
class RewardFiles:
    """The contents of the files in ``/logs/verifier``, None for those that are not there.

    Attributes:
        reward_json: ``reward.json``.
        reward_txt: ``reward.txt``.
        report: What ``ctrf.json`` (https://ctrf.io) says, as evidence; see :func:`parse_report`.
    """

    reward_json: bytes | None = None
    reward_txt: bytes | None = None
    report: JSONObject | None = None

    @property
    def has_reward(self) -> bool:
        """Whether there is a reward, readable or not."""
        return self.reward_json is not None or self.reward_txt is not None

    def rewards(self) -> dict[str, float]:
        """Return all numbers; the reward itself is the one named ``reward``, or the only one.

        Raises:
            RewardUnreadable: There is none, or it is no reward.
        """
        if self.reward_json is not None:
            return parse_reward_json(self.reward_json)[1]
        return {"reward": parse_reward_text(self.reward_txt or b"")}

    def value(self) -> float:
        """Return the reward.

        Raises:
            RewardUnreadable: There is none, or it is no reward.
        """
        if self.reward_json is not None:
            return parse_reward_json(self.reward_json)[0]
        return parse_reward_text(self.reward_txt or b"")


def parse_reward_text(data: bytes) -> float:
    """Return the number in ``reward.txt``.

    Raises:
        RewardUnreadable: It is empty or no finite number.
    """
    text = data.decode("utf-8", "replace").strip()
    try:
        value = float(text)
    except ValueError:
        raise RewardUnreadable(f"reward.txt holds {text[:100]!r}, which is no number.") from None
    if not math.isfinite(value):
        raise RewardUnreadable(f"reward.txt holds {text[:100]!r}, which is not finite.")
    return value


def parse_reward_json(data: bytes) -> tuple[float, dict[str, float]]:
    """Return the reward in ``reward.json`` and all its numbers.

    Raises:
        RewardUnreadable: It is no flat object of finite numbers, or none of several is named
            ``reward``.
    """
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RewardUnreadable(f"reward.json is not valid JSON: {error}") from error
    if not isinstance(content, dict) or not content or not all(map(_is_number, content.values())):
        shown = data[:200].decode("utf-8", "replace")
        raise RewardUnreadable(f"reward.json must be an object of finite numbers, not {shown}")
    rewards = {name: float(value) for name, value in content.items()}
    if "reward" in rewards:
        return rewards["reward"], rewards
    if len(rewards) == 1:
        return next(iter(rewards.values())), rewards
    raise RewardUnreadable(f"reward.json names {', '.join(rewards)}, but none of them 'reward'.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def parse_report(data: bytes) -> JSONObject:
    """Return a test report's totals and outcomes as ``ctrf``, partial credit for whoever wants it.

    One that cannot be read is no error: then there is ``ctrf_error``, which says why.
    """
    try:
        results = orjson.loads(data)["results"]
        tests = [
            {"name": str(test["name"])[:MAX_NAME_CHARS], "status": str(test["status"])[:20]}
            for test in results["tests"][:MAX_TESTS_KEPT]
        ]
        summary = _summary(results["summary"])
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
        return {"ctrf_error": f"ctrf.json cannot be read: {error}"}
    return {"ctrf": {"summary": summary, "tests": tests}}


def _summary(counts: Mapping[str, Any]) -> dict[str, int]:
    names = ("tests", "passed", "failed", "pending", "skipped", "other")
    summary = {name: int(counts[name]) for name in names if name in counts}
    if any(abs(count) > MAX_COUNT for count in summary.values()):
        raise ValueError("a count that no log could hold")
    return summary
