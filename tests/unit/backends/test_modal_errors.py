"""One case per row of Modal's table."""

from __future__ import annotations

import pytest

pytest.importorskip("modal", reason="needs hermes_rl[modal]")

import modal.exception as vendor
from grpclib import GRPCError, Status
from modal._grpc_client import grpc_error_to_modal_exception
from modal_proto import api_pb2

from hermes_rl.backends.cloud_errors import Phase
from hermes_rl.backends.modal_errors import TABLE
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


def grpc(status: Status, message: str, *details: object) -> Exception:
    """What the SDK raises for a status, made as it makes it."""
    return grpc_error_to_modal_exception(GRPCError(status, message, list(details)))


CASES: list[tuple[int, Phase, Exception, type[HermesRLError], str]] = [
    (0, "connect", grpc(Status.UNAUTHENTICATED, "bad"), ConfigError, "MODAL_TOKEN_SECRET"),
    (1, "create", grpc(Status.PERMISSION_DENIED, "not yours"), ConfigError, "not yours"),
    (2, "connect", vendor.VersionError("too old"), ConfigError, "--upgrade modal"),
    (3, "image", vendor.ImageBuildError("manifest unknown", "im-1"), ImageNotFound, "manifest"),
    (4, "image", vendor.ImageBuildError("exit code 7", "im-1"), ImageBuildFailed, "exit code 7"),
    (5, "create", grpc(Status.RESOURCE_EXHAUSTED, "Rate limit hit"), RateLimited, "Rate limit"),
    (6, "create", grpc(Status.RESOURCE_EXHAUSTED, "100 containers"), Capacity, "100"),
    (7, "use", vendor.SandboxTimeoutError(), SandboxGone, "lease"),
    (8, "use", vendor.SandboxTerminatedError(), SandboxGone, "SandboxTerminatedError"),
    (9, "create", vendor.TimeoutError("not scheduled"), Capacity, "not scheduled"),
    (10, "create", grpc(Status.INVALID_ARGUMENT, "cpu"), CreateError, "cpu"),
    (11, "create", grpc(Status.NOT_FOUND, "no such app"), CreateError, "no such app"),
    (12, "use", grpc(Status.NOT_FOUND, "sb-1 not found"), SandboxGone, "sb-1"),
    (13, "use", TimeoutError(), BackendUnavailable, "TimeoutError"),
    (14, "use", KeyError("surprise"), SandboxError, "surprise"),
]


@pytest.mark.parametrize(("row", "phase", "raised", "expected", "text"), CASES)
def test_row(
    row: int, phase: Phase, raised: Exception, expected: type[HermesRLError], text: str
) -> None:
    assert next(n for n, each in enumerate(TABLE.rows) if each.matches(phase, raised)) == row
    error = TABLE.error(raised, phase, sandbox_id="sb-1")
    assert type(error) is expected
    assert text in str(error)
    if isinstance(error, SandboxError):
        assert (error.backend, error.sandbox_id) == ("modal", "sb-1")


def test_every_row_has_a_case() -> None:
    assert sorted({case[0] for case in CASES}) == list(range(len(TABLE.rows)))


def test_throttling_carries_the_time_to_wait() -> None:
    raised = grpc(Status.RESOURCE_EXHAUSTED, "slow", api_pb2.RPCRetryPolicy(retry_after_secs=2.5))
    error = TABLE.error(raised, "create")
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 2.5
