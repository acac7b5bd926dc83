from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rlhfless.client.sse import Message, Parser

TEXT = (
    "retry: 1000\n\n"
    ": still here\n\n"
    'id: 1-0\nevent: step\ndata: {"a": "é"}\n\n'
    "data: two\ndata: lines\n\n"
    "id: 2-0\ndata\n\n"
    "data:unspaced\nunknown: field\n\n"
    "id: 3-0\n\n"
    "data: late\n\n"
    "id: 4-0\ndata: half said"
)
TOLD = [
    Message('{"a": "é"}', "step", "1-0"),
    Message("two\nlines", "message", "1-0"),
    Message("", "message", "2-0"),
    Message("unspaced", "message", "2-0"),
    Message("late", "message", "3-0"),
]


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 250)), st.booleans())
def test_it_does_not_matter_where_a_stream_is_cut(
    newline: str, cuts: list[int], mark: bool
) -> None:
    body = (("\ufeff" if mark else "") + TEXT.replace("\n", newline)).encode()
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parser = Parser()
    told = [message for start, end in pairwise(edges) for message in parser.feed(body[start:end])]
    assert told == TOLD
    assert parser.retry_ms == 1000


@given(st.lists(st.binary(max_size=50)))
def test_no_bytes_break_it(chunks: list[bytes]) -> None:
    parser = Parser()
    for chunk in chunks:
        parser.feed(chunk)


def test_an_id_with_a_null_byte_is_none() -> None:
    assert Parser().feed(b"id: 1\nid: \x00\ndata: x\n\n") == [Message("x", "message", "1")]
