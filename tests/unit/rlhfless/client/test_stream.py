"""Events of both clients through cut streams: none lost, none doubled."""

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.errors import NotFoundError, TransientError
from tests.support.clients import (
    KINDS,
    Cut,
    Kind,
    Script,
    document,
    event,
    job,
    outcome,
    page,
    streamed,
)

ONE = job()["id"]
RUNNING = job()
ENDED = job(state="succeeded")


def stream(*chunks: bytes, broken: bool = False) -> httpx.Response:
    return httpx.Response(200, stream=Cut(*chunks, broken=broken))


def ids(events: list[Any]) -> list[str]:
    return [each.id for each in events]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_stream_is_taken_up_where_it_was_cut(kind: Kind) -> None:
    first, second = streamed(event(1), event(2)), streamed(event(2), event(3))
    script = Script(
        stream(b"retry: 1000\n\n", first[:-1], broken=True),
        document(**RUNNING),
        httpx.ConnectError("the replica is gone"),
        stream(second),
        document(**ENDED),
        page(event(4)),
    )
    told = outcome(kind, script, lambda client: client.jobs.events(ONE))
    assert ids(told) == ["1-0", "2-0", "3-0", "4-0"]
    streams = [r for r in script.requests if r.headers["accept"] == "text/event-stream"]
    assert [r.headers.get("last-event-id") for r in streams] == [None, "1-0", "1-0"]
    assert script.paths[-1].endswith("/events?limit=100&after=3-0")


@pytest.mark.parametrize("kind", KINDS)
def test_events_go_on_after_one(kind: Kind) -> None:
    script = Script(stream(streamed(event(5))), document(**ENDED), page())
    told = outcome(kind, script, lambda client: client.jobs.events(ONE, after="4-0"))
    assert ids(told) == ["5-0"]
    assert script.requests[0].headers["last-event-id"] == "4-0"


@pytest.mark.parametrize("kind", KINDS)
def test_events_that_are_there_come_in_pages(kind: Kind) -> None:
    script = Script(page(event(1), more=True), page(event(2)))
    told = outcome(kind, script, lambda client: client.jobs.events(ONE, follow=False))
    assert ids(told) == ["1-0", "2-0"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_never_says_anything_is_given_up(kind: Kind) -> None:
    script = Script(*[stream(), document(**RUNNING)] * 4)
    with pytest.raises(TransientError, match="again and again"):
        outcome(kind, script, lambda client: client.jobs.events(ONE))
    assert len(script.slept) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_no_job_has_no_events(kind: Kind) -> None:
    gone = NotFoundError("no such job")
    script = Script(httpx.Response(404, json=gone.to_problem()))
    with pytest.raises(NotFoundError):
        outcome(kind, script, lambda client: client.jobs.events(ONE))


class Serving:
    """A service with ``total`` events whose every stream is cut after so many bytes."""

    def __init__(self, total: int, cuts: list[int]) -> None:
        self._events = [event(number) for number in range(1, total + 1)]
        self._cuts = cuts
        self.slept: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        after = request.headers.get("last-event-id") or request.url.params.get("after") or "0-0"
        left = self._events[int(after.partition("-")[0]) :]
        if request.headers["accept"] == "text/event-stream":
            if not self._cuts:
                return stream(streamed(*left))
            return stream(streamed(*left)[: self._cuts.pop()], broken=True)
        if request.url.path.endswith("/events"):
            return page(*left[:2], more=len(left) > 2)
        return document(**(RUNNING if self._cuts else ENDED))


@given(st.integers(0, 6), st.lists(st.integers(1, 800), max_size=8))
@settings(deadline=None)
def test_wherever_streams_are_cut_each_event_comes_once(total: int, cuts: list[int]) -> None:
    serving: Any = Serving(total, cuts)
    told = outcome("waiting", serving, lambda client: client.jobs.events(ONE), retries=10)
    assert ids(told) == [f"{number}-0" for number in range(1, total + 1)]
