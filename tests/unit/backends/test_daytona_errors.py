"""One case per row of Daytona's table."""

from __future__ import annotations

import pytest

pytest.importorskip("daytona", reason="needs hermes_rl[daytona]")

from daytona.common import errors as vendor

from hermes_rl.backends.cloud_errors import Phase
from hermes_rl.backends.daytona_errors import TABLE
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    HermesRLError,
    ImageBuildFailed,
    ImageNotFound,
    RateLimited,
    SandboxError,
    SandboxGone,
)


def http(status: int, message: str, **headers: str) -> Exception:
    """What the SDK raises for an answer, made as it makes it."""
    return vendor.create_daytona_error(message, status_code=status, headers=headers)


CASES: list[tuple[int, Phase, Exception, type[HermesRLError], str]] = [
    (0, "connect", http(401, "bad key"), ConfigError, "DAYTONA_API_KEY"),
    (1, "create", http(403, "Organization quota reached"), Capacity, "quota"),
    (2, "use", http(403, "Forbidden"), ConfigError, "Forbidden"),
    (3, "create", http(429, "Too many"), RateLimited, "Too many"),
    (4, "create", vendor.DaytonaQueueTimeoutError("queued"), Capacity, "queued"),
    (5, "create", vendor.DaytonaError("manifest unknown"), ImageNotFound, "manifest"),
    (6, "create", vendor.DaytonaError("state: build_failed"), ImageBuildFailed, "build_failed"),
    (7, "create", http(404, "no such thing"), ImageNotFound, "no such thing"),
    (8, "create", http(422, "no such region"), CreateError, "region"),
    (9, "use", http(404, "box not found"), SandboxGone, "box"),
    (10, "use", http(503, "try later"), BackendUnavailable, "try later"),
    (11, "create", vendor.DaytonaError("state: error"), CreateError, "state: error"),
    (12, "use", KeyError("surprise"), SandboxError, "surprise"),
]


@pytest.mark.parametrize(("row", "phase", "raised", "expected", "text"), CASES)
def test_row(
    row: int, phase: Phase, raised: Exception, expected: type[HermesRLError], text: str
) -> None:
    assert next(n for n, each in enumerate(TABLE.rows) if each.matches(phase, raised)) == row
    error = TABLE.error(raised, phase, sandbox_id="box-1")
    assert type(error) is expected
    assert text in str(error)
    if isinstance(error, SandboxError):
        assert (error.backend, error.sandbox_id) == ("daytona", "box-1")


def test_every_row_has_a_case() -> None:
    assert sorted({case[0] for case in CASES}) == list(range(len(TABLE.rows)))


@pytest.mark.parametrize(("wait", "expected"), [("7", 7.0), ("soon", None)])
def test_a_refusal_for_haste_carries_the_time_to_wait(wait: str, expected: float | None) -> None:
    error = TABLE.error(http(429, "Too many", **{"Retry-After": wait}), "create")
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == expected
