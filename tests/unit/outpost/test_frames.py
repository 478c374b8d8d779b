"""Cutting a byte stream into frames, and the encoding of structured payloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.backends.outpost.frames import (
    HEADER,
    MAX_PAYLOAD_BYTES,
    FrameError,
    FrameParser,
    Kind,
    frame,
    pack_fields,
    pack_list,
    to_bytes,
    to_text,
    unpack_fields,
    unpack_list,
)

FRAMES = st.lists(
    st.tuples(
        st.sampled_from([Kind.RESULT, Kind.STDOUT, Kind.PONG]),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=300),
    ),
    max_size=20,
)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1))
def test_any_split_gives_the_same_frames(
    sent: list[tuple[Kind, int, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(frame(kind, id, payload) for kind, id, payload in sent)
    parser, received, position, turn = FrameParser(), [], 0, 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += list(parser.feed(stream[position : position + size]))
        position, turn = position + size, turn + 1
    assert received == sent


def test_an_unknown_type_is_an_error_after_what_was_good() -> None:
    parser = FrameParser()
    frames = parser.feed(frame(Kind.PONG, 1) + frame(200, 2) + frame(Kind.PONG, 3))
    assert next(frames) == (Kind.PONG, 1, b"")
    with pytest.raises(FrameError, match="200"):
        next(frames)


def test_requests_are_not_accepted_as_replies() -> None:
    with pytest.raises(FrameError):
        list(FrameParser().feed(frame(Kind.RUN, 1)))


def test_a_length_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError):
        list(FrameParser().feed(HEADER.pack(Kind.STDOUT, 1, MAX_PAYLOAD_BYTES + 1)))
    largest = frame(Kind.STDOUT, 1, bytes(MAX_PAYLOAD_BYTES))
    assert len(list(FrameParser().feed(largest))) == 1


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), st.binary()))
def test_fields_round_trip(fields: dict[str, bytes]) -> None:
    assert unpack_fields(pack_fields(fields)) == fields


@given(st.lists(st.binary()))
def test_lists_round_trip(items: list[bytes]) -> None:
    assert unpack_list(pack_list(items)) == items


@given(st.binary(max_size=200))
def test_hostile_fields_and_lists_are_frame_errors_only(payload: bytes) -> None:
    for unpack in (unpack_fields, unpack_list):
        try:
            unpack(payload)
        except FrameError:
            continue


@given(st.binary())
def test_any_bytes_survive_as_text(data: bytes) -> None:
    assert to_bytes(to_text(data)) == data


def test_text_that_is_no_unicode_becomes_some_bytes() -> None:
    assert to_bytes("a\ud800b") == b"a\xed\xa0\x80b"
