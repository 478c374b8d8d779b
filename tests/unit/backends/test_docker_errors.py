"""Every row of the table of the engine's failures, by a message the engine really gives."""

from __future__ import annotations

import pickle

import pytest

from hermes_rl.backends.docker_errors import (
    TABLE,
    TIMED_OUT,
    UNREACHABLE,
    EngineFailure,
    Phase,
    sandbox_error,
    translated,
)
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    ImageNotFound,
    RateLimited,
    SandboxError,
    SandboxFileNotFound,
    SandboxGone,
    SandboxPermissionDenied,
)

# Row of TABLE, phase, status, message, error. Messages of dockerd 20.10.24 unless said otherwise.
CASES: list[tuple[int, Phase, int, str, type[Exception]]] = [
    (
        0,
        "connect",
        UNREACHABLE,
        "Cannot connect to unix socket /run/docker.sock ssl:default [Permission denied]",
        BackendUnavailable,
    ),
    (
        1,
        "create",
        UNREACHABLE,
        "Cannot connect to unix socket /run/docker.sock ssl:default [Too many open files]",
        Capacity,
    ),
    (
        2,
        "connect",
        UNREACHABLE,
        "Cannot connect to unix socket /run/docker.sock ssl:default [No such file or directory]",
        BackendUnavailable,
    ),
    (2, "create", TIMED_OUT, "no answer within 60 s", BackendUnavailable),
    (
        3,
        "create",
        500,
        "mkdir /var/lib/docker/overlay2/x-init/merged: no space left on device",
        Capacity,
    ),
    (
        3,
        "image",
        0,
        "failed to register layer: Error processing tar file(exit status 1): write /x: "
        "no space left on device",
        Capacity,
    ),
    (
        4,
        "image",
        500,
        "toomanyrequests: You have reached your pull rate limit. You may increase the limit by "
        "authenticating and upgrading",
        RateLimited,
    ),
    (
        5,
        "image",
        404,
        "pull access denied for nosuch, repository does not exist or may require 'docker login': "
        "denied: requested access to the resource is denied",
        ImageNotFound,
    ),
    (5, "image", 404, "manifest for debian:nosuch not found: manifest unknown", ImageNotFound),
    (5, "image", 400, "invalid reference format", ImageNotFound),
    (
        5,
        "image",
        0,
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        ImageNotFound,
    ),
    (
        6,
        "image",
        500,
        'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on '
        "10.0.0.53:53: no such host",
        BackendUnavailable,
    ),
    (7, "create", 404, "No such image: nosuch:1", ImageNotFound),
    (8, "create", 404, "network nosuchnet not found", ConfigError),
    (
        9,
        "create",
        500,
        "failed to create endpoint x on network bridge: adding interface veth1 to bridge docker0 "
        "failed: exchange full",
        Capacity,
    ),
    (9, "create", 403, "no available IPv4 addresses on this network's address pools", Capacity),
    (
        10,
        "create",
        500,
        "failed to create shim: fork/exec /usr/bin/containerd-shim: "
        "resource temporarily unavailable",
        Capacity,
    ),
    (11, "create", 404, "No such container: 32460039b39d", SandboxGone),
    (
        12,
        "create",
        400,
        "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
        "start container process: exec: exec format error: unknown",
        CreateError,
    ),
    (12, "create", 400, "Minimum memory limit allowed is 6MB", CreateError),
    (11, "use", 404, "No such container: 32460039b39d", SandboxGone),
    (13, "use", 409, "Container 32460039b39d is not running", SandboxGone),
    (13, "use", 409, "removal of container 32460039b39d is already in progress", SandboxGone),
    (14, "file", 404, "No such container: 32460039b39d", SandboxGone),
    (
        15,
        "file",
        404,
        "Could not find the file /nosuch in container 32460039b39d",
        SandboxFileNotFound,
    ),
    (16, "file", 409, "removal of container 32460039b39d is already in progress", SandboxGone),
    (17, "file", 500, "container rootfs is marked read-only", SandboxPermissionDenied),
    (18, "use", 500, "something nobody has seen", SandboxError),
]


@pytest.mark.parametrize(("row", "phase", "status", "message", "kind"), CASES)
def test_an_engine_failure_becomes_the_tables_error(
    row: int, phase: Phase, status: int, message: str, kind: type[Exception]
) -> None:
    failure = EngineFailure(status, message)
    assert next(i for i, r in enumerate(TABLE) if r.matches(phase, failure)) == row
    error = sandbox_error(failure, phase, sandbox_id="abc", path="/x")
    assert type(error) is kind
    assert message in str(error)
    if isinstance(error, SandboxError):
        assert (error.backend, error.sandbox_id) == ("docker", "abc")


def test_every_row_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(range(len(TABLE)))


def test_a_file_error_names_its_path() -> None:
    failure = EngineFailure(404, "Could not find the file /x in container abc")
    error = sandbox_error(failure, "file", path="/x")
    assert isinstance(error, SandboxFileNotFound)
    assert error.path == "/x"


def test_the_cause_stays_attached_and_everything_is_picklable() -> None:
    with pytest.raises(ImageNotFound) as caught, translated("create"):
        raise EngineFailure(404, "No such image: x:1")
    assert isinstance(caught.value.__cause__, EngineFailure)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value.__cause__))) == "No such image: x:1 [404]"


def test_what_is_no_engine_failure_passes() -> None:
    with pytest.raises(KeyError), translated("use"):
        raise KeyError("x")
