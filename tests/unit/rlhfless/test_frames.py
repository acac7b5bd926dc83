import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.errors import TransientError
from rlhfless.frames import FrameReader, encode_frame
from rlhfless.messages import Finished, Frame, Heartbeat, RolloutDone, Tokens

FRAMES: list[Frame] = [
    Heartbeat(busy_s=1.5),
    Tokens(samples=[0], starts=[0], counts=[1], tokens=[5], logprobs=b"\0" * 4, version=3),
    Finished(samples=[0], reasons=["stop"]),
    RolloutDone(generated_tokens=1),
]


@given(st.lists(st.sampled_from(FRAMES), max_size=6), st.lists(st.integers(1, 30), min_size=1))
def test_frames_survive_any_cutting(frames: list[Frame], sizes: list[int]) -> None:
    data = b"".join(encode_frame(frame) for frame in frames)
    reader = FrameReader()
    seen: list[Frame] = []
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        seen += reader.feed(data[position : position + size])
        position += size
        turn += 1
    reader.close()
    assert seen == frames


def test_a_stream_that_breaks_off_inside_a_frame() -> None:
    reader = FrameReader()
    assert list(reader.feed(encode_frame(FRAMES[0])[:-1])) == []
    with pytest.raises(TransientError, match="middle of a frame"):
        reader.close()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\x01"])
def test_bytes_that_are_no_frame(data: bytes) -> None:
    with pytest.raises(TransientError, match="corrupt"):
        list(FrameReader().feed(data))
