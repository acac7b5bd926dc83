"""Where a log that is read again goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.platforms.knative_log_place import (
    MAX_LINE_BYTES,
    LineSplitter,
    LogPlace,
    parse_ns,
)


def stamp(ns: int) -> bytes:
    return b"1970-01-01T00:%02d:%02d.%09dZ" % (ns // 60 // 10**9, ns // 10**9 % 60, ns % 10**9)


def test_dates_as_go_writes_them() -> None:
    assert parse_ns("1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert parse_ns("1970-01-01T00:00:01Z") == 10**9
    assert parse_ns("1970-01-01T01:00:01.000000001+01:00") == 10**9 + 1


@given(
    gaps=st.lists(st.sampled_from([0, 1, 500_000_000, 10**9]), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=5),
)
def test_however_often_it_breaks_every_line_is_told_once(gaps: list[int], cuts: list[int]) -> None:
    """Lines of one moment included; as Kubernetes does, each reading begins with a whole second."""
    at_ns, lines = 5 * 10**9, []
    for number, gap in enumerate(gaps):
        at_ns += gap
        lines.append((at_ns, b"%d" % number))
    place, told = LogPlace(), []
    for cut in [*cuts, len(lines)]:
        place.begin()
        since_ns = parse_ns(place.since) if place.since else 0
        for ns, text in [line for line in lines[:cut] if line[0] >= since_ns]:
            said = place.take(stamp(ns) + b" " + text)
            if said is not None:
                told.append(said)
    assert told == [text for _, text in lines]


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    place = LogPlace()
    assert place.take(stamp(9 * 10**9) + b" later") == b"later"
    assert place.take(stamp(10**9) + b" earlier") == b"earlier"


def test_what_was_kept_before_is_not_told_again() -> None:
    place = LogPlace(since_s=10.0)
    assert place.since == "1970-01-01T00:00:10Z"
    assert place.take(stamp(9 * 10**9) + b" old") is None
    assert place.take(stamp(11 * 10**9) + b" new") == b"new"


def test_a_line_without_a_date_is_told() -> None:
    assert LogPlace().take(b"unable to retrieve container logs") is not None


@given(
    texts=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=6),
    size=st.integers(1, 7),
)
def test_lines_come_whole_however_they_are_cut(texts: list[bytes], size: int) -> None:
    data = b"".join(text + b"\n" for text in texts) + b"rest"
    splitter, found = LineSplitter(), []
    for start in range(0, len(data), size):
        found += splitter.feed(data[start : start + size])
    assert found == texts
    assert splitter.rest == b"rest"


def test_of_a_line_without_end_the_beginning_is_kept() -> None:
    splitter, found = LineSplitter(), []
    for _ in range(10):
        found += splitter.feed(b"x" * MAX_LINE_BYTES)
    found += splitter.feed(b"x\nnext\n")
    assert [len(line) for line in found] == [MAX_LINE_BYTES, 4]
    assert splitter.rest == b""
