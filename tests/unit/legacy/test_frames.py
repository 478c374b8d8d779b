from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.legacy.in_worker.frames import (
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameError,
    Frames,
    Kind,
    pack,
    read_frame,
)

FRAMES = st.lists(
    st.tuples(st.sampled_from(list(Kind)), st.integers(0, 2**64 - 1), st.binary(max_size=50))
)


@given(FRAMES, st.integers(1, 40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[Kind, int, bytes]], piece: int
) -> None:
    stream = b"".join(pack(*each) for each in sent)
    frames = Frames()
    got = [
        frame
        for start in range(0, len(stream), piece)
        for frame in frames.feed(stream[start : start + piece])
    ]
    assert got == [Frame(*each) for each in sent]
    source = io.BytesIO(stream)
    assert [read_frame(source.read) for _ in sent] == got
    assert read_frame(source.read) is None


def test_a_frame_that_is_cut_off_is_the_end_of_the_stream() -> None:
    assert read_frame(io.BytesIO(pack(Kind.CALL, 1, b"abc")[:-1]).read) is None


def test_what_is_no_frame_is_refused() -> None:
    head = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big") + bytes(9)
    with pytest.raises(FrameError):
        list(Frames().feed(head))
    with pytest.raises(FrameError):
        read_frame(io.BytesIO(head).read)
