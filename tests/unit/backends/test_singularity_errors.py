"""What Apptainer says when something fails, one case per row of the table at least."""

from __future__ import annotations

import pytest

from hermes_rl.backends.singularity_errors import TABLE, last_complaint, singularity_error
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    CreateError,
    ImageNotFound,
    RateLimited,
    SandboxError,
)

BUILD = "FATAL:   While performing build: conveyor failed to get: "
CASES: list[tuple[int, str, type[SandboxError], str]] = [
    (0, "FATAL: While performing build: write /x: no space left on device", Capacity, "TMPDIR"),
    (1, f"{BUILD}toomanyrequests: You have reached your pull rate limit", RateLimited, "Log in"),
    (
        2,
        "FATAL: could not use fakeroot: no mapping entry found in /etc/subuid for agent",
        BackendUnavailable,
        "usermod --add-subuids",
    ),
    (
        3,
        "ERROR  : Failed to create user namespace: user namespace disabled",
        BackendUnavailable,
        "kernel.unprivileged_userns_clone=1",
    ),
    (
        3,
        "INFO   : A system administrator may need to enable user namespaces, install\n"
        "\x1b[91mERROR  : Failed to create user namespace: maximum number of user namespaces "
        "exceeded, check /proc/sys/user/max_user_namespaces\n\x1b[0m",
        BackendUnavailable,
        "user.max_user_namespaces",
    ),
    (
        4,
        "FATAL:   container creation failed: while applying cgroups config: cannot use cgroups - "
        "cannot use systemd cgroups manager, systemd not running as init on this host",
        BackendUnavailable,
        "cgroups v2 with systemd",
    ),
    (5, 'Error for command "exec": unknown flag: --bogus\n', BackendUnavailable, "1.1 or newer"),
    (
        6,
        f"{BUILD}error saving the docker archive file: Error response from daemon: reference does "
        "not exist",
        ImageNotFound,
        "Check its name",
    ),
    (6, f"{BUILD}could not parse reference: 127.0.0.1:9/x", ImageNotFound, "Check its name"),
    (
        6,
        f"{BUILD}error reading the docker archive file: open /nosuch.tar: no such file or "
        "directory",
        ImageNotFound,
        "/nosuch.tar",
    ),
    (
        6,
        f"{BUILD}Requesting bearer token: invalid status code 401: unauthorized",
        ImageNotFound,
        "apptainer registry login",
    ),
    (
        7,
        "FATAL:   While checking container encryption: could not open image /j.sif: image format "
        "not recognized",
        CreateError,
        "apptainer build IMAGE.sif",
    ),
    (
        7,
        "FATAL:   container creation failed: mount hook function failure: mount "
        "/session/dev->/dev error: destination /dev doesn't exist in container",
        CreateError,
        "unpacked directory",
    ),
    (
        8,
        f'{BUILD}Get "https://index.docker.io/v2/": dial tcp: lookup index.docker.io on '
        "10.0.0.53:53: no such host",
        BackendUnavailable,
        "The pull failed",
    ),
    (9, "FATAL:   something that nobody knows", CreateError, "hermes_rl doctor singularity"),
]
"""Row, complaint, error, a part of its text."""


@pytest.mark.parametrize(("row", "said", "kind", "text"), CASES)
def test_each_row_gives_a_typed_error_that_names_the_fix(
    row: int, said: str, kind: type[SandboxError], text: str
) -> None:
    error = singularity_error(said.encode())
    assert type(error) is kind
    assert text in str(error)
    assert error.backend == "singularity"
    assert str(TABLE[row].make("X")).startswith(str(error).split(last_complaint(said.encode()))[0])


def test_every_row_has_a_case() -> None:
    assert {row for row, *_ in CASES} == set(range(len(TABLE)))


def test_the_complaint_is_the_fatal_line_without_colours_and_chatter() -> None:
    said = b"INFO:    Starting\n\x1b[31mFATAL:   it broke\x1b[0m\nWARNING: and more\n\n"
    assert last_complaint(said) == "it broke"
    padded = b"ERROR  : it broke\nINFO   : ask someone\nand this\n"
    assert last_complaint(padded) == "it broke"
    assert last_complaint(b"WARNING: only this\n") == "WARNING: only this"
    assert last_complaint(b"") == ""


def test_silence_is_named() -> None:
    assert "exit code 3" in str(singularity_error(b"", otherwise="exit code 3"))
