"""Build output out of BuildKit's traces; the messages were recorded from dockerd 20.10.24."""

from __future__ import annotations

import base64

import pytest

from hermes_rl.backends.docker_buildkit import trace_output

PRINTED = (
    "GmUKR3NoYTI1Njo5ZjZlOTA3NDVhZjAxMTE5MDJmOWE3ZGZkY2ZiOTM2ZTdkNTJhZjc3ZGE3MDMxYmMzYmIyNGFjYjE2"
    "MGE4MzY3EgwIs6Sz2AYQi8fbnQMYASIKVEhFT1VUUFVUCg=="
)
FAILED = (
    "Ct4CCkdzaGEyNTY6OWY2ZTkwNzQ1YWYwMTExOTAyZjlhN2RmZGNmYjkzNmU3ZDUyYWY3N2RhNzAzMWJjM2JiMjRhY2Ix"
    "NjBhODM2NxJHc2hhMjU2OjEyYTA5NWZhMTA1MDZjNTgwNjg4YzJmNDcyZjI4NTYxZGQzYmMwMWE5MjYyN2E5MTBhNmEx"
    "M2YzNTlkYzk5OGEaVFtzdGFnZS0wIDIvMl0gUlVOIC0tbW91bnQ9dHlwZT1jYWNoZSx0YXJnZXQ9L2MgZWNobyBUSEVP"
    "VVRQVVQ7IGVjaG8gYmFkID4mMjsgIGV4aXQgMyoMCLOks9gGENTQ76oCMgwIs6Sz2AYQxqSosAM6WGV4ZWN1dG9yIGZh"
    "aWxlZCBydW5uaW5nIFsvYmluL3NoIC1jIGVjaG8gVEhFT1VUUFVUOyBlY2hvIGJhZCA+JjI7ICBleGl0IDNdOiBleGl0"
    "IGNvZGU6IDM="
)
BEGUN = (
    "Cn0KR3NoYTI1NjpmMTUxOWIzYzRjMGZjNWU4MTE5MWQ4MDkwNTk1ZGFkMjI1ZjUyMDIxN2ZjMGJjMzBmZWE5MWY1OTRi"
    "ZjY1MmU1GiRbaW50ZXJuYWxdIGxvYWQgcmVtb3RlIGJ1aWxkIGNvbnRleHQqDAippLPYBhCAq5u2Aw=="
)


@pytest.mark.parametrize(
    ("aux", "text"),
    [
        (PRINTED, "THEOUTPUT\n"),
        (
            FAILED,
            "executor failed running [/bin/sh -c echo THEOUTPUT; echo bad >&2;  exit 3]: "
            "exit code: 3\n",
        ),
        (BEGUN, "[internal] load remote build context\n"),
    ],
)
def test_what_a_person_would_read_is_found(aux: str, text: str) -> None:
    assert trace_output(aux) == text


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_message_is_no_error(cut: int) -> None:
    data = base64.b64decode(PRINTED)[:cut]
    assert isinstance(trace_output(base64.b64encode(data).decode()), str)


@pytest.mark.parametrize("aux", ["", "%%%", "A", base64.b64encode(b"\x0f\xff\xff").decode()])
def test_garbage_is_an_empty_text(aux: str) -> None:
    assert trace_output(aux) == ""
