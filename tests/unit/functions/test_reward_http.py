"""Rewards behind a URL, with a real server on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from functions.reward.http_scorer import ATTEMPTS, HttpScorer
from functions.reward.process import CallCancelled
from functions.reward.scorer import Samples
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import CallInfo, RewardFunction, RewardRequest

Answer = tuple[int, str]


class Endpoint:
    """Answers requests by ``answers``, the last one again and again; keeps the bodies it got."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.answers: list[Answer] = [(200, '{"rewards": [1.0, null]}')]
        self.release = threading.Event()
        self.release.set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                endpoint.bodies.append(json.loads(body))
                endpoint.release.wait()
                index = min(len(endpoint.bodies), len(endpoint.answers)) - 1
                status, text = endpoint.answers[index]
                if status == 0:  # break the connection
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/score"

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture
def make() -> Iterator[Callable[..., HttpScorer]]:
    made: list[HttpScorer] = []

    def build(url: str, **settings: Any) -> HttpScorer:
        function = RewardFunction(name="judge", kind="http", target=url, **settings)
        made.append(HttpScorer(function, first_pause_s=0.001))
        return made[-1]

    yield build
    for scorer in made:
        scorer.close()


SAMPLES = Samples(
    RewardRequest(
        call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
        functions=[],
        sample_ids=["s0", "s1"],
        prompts=["p0", [{"role": "user", "content": "p1"}]],
        completions=["c0", [{"role": "assistant", "content": "c1"}]],
        completion_ids=[[1], [2, 3]],
        columns={"answer": [4, "vier"]},
    )
)


def _never() -> bool:
    return False


def test_the_body_and_the_scores(endpoint: Endpoint, make: Callable[..., HttpScorer]) -> None:
    scorer = make(endpoint.url)
    assert scorer.score(SAMPLES, _never) == [1.0, None]
    assert scorer.score(SAMPLES, _never) == [1.0, None]
    assert endpoint.bodies == 2 * [
        {
            "prompts": ["p0", [{"role": "user", "content": "p1"}]],
            "completions": ["c0", [{"role": "assistant", "content": "c1"}]],
            "completion_ids": [[1], [2, 3]],
            "columns": {"answer": [4, "vier"]},
        }
    ]


@pytest.mark.parametrize("trouble", [(503, "busy"), (500, ""), (429, "slow down"), (0, "")])
def test_trouble_that_passes_is_tried_again(
    trouble: Answer, endpoint: Endpoint, make: Callable[..., HttpScorer]
) -> None:
    endpoint.answers = [trouble] * (ATTEMPTS - 1) + [(200, '{"rewards": [0, 1]}')]
    assert make(endpoint.url).score(SAMPLES, _never) == [0.0, 1.0]
    assert len(endpoint.bodies) == ATTEMPTS


@pytest.mark.parametrize(
    ("trouble", "message"), [((503, "too busy\nmore"), "status 503: too busy"), ((0, ""), "Remote")]
)
def test_trouble_that_stays_is_transient(
    trouble: Answer, message: str, endpoint: Endpoint, make: Callable[..., HttpScorer]
) -> None:
    endpoint.answers = [trouble]
    with pytest.raises(TransientError) as caught:
        make(endpoint.url).score(SAMPLES, _never)
    assert caught.value.detail.startswith(f"reward 'judge' at {endpoint.url}: {message}")
    assert "more" not in caught.value.detail
    assert len(endpoint.bodies) == ATTEMPTS


def test_nobody_listening(make: Callable[..., HttpScorer]) -> None:
    with pytest.raises(TransientError, match="ConnectError"):
        make("http://127.0.0.1:1/score").score(SAMPLES, _never)


def test_silence_ends_at_the_time_limit(
    endpoint: Endpoint, make: Callable[..., HttpScorer]
) -> None:
    endpoint.release.clear()
    with pytest.raises(TransientError, match=r"no answer within 0\.2 s"):
        make(endpoint.url, timeout_s=0.2).score(SAMPLES, _never)


def test_a_call_no_longer_wanted_ends_at_once(
    endpoint: Endpoint, make: Callable[..., HttpScorer]
) -> None:
    endpoint.release.clear()
    with pytest.raises(CallCancelled):
        make(endpoint.url, timeout_s=500).score(SAMPLES, lambda: True)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, "no such page\nat all"), "answered with status 404: no such page"),
        ((422, ""), "answered with status 422"),
        ((302, "moved"), "answered with status 302: moved"),
        ((200, "<html>"), "answered with something that is no JSON: <html>"),
        ((200, "[1, 2]"), "answered without 'rewards': [1, 2]"),
        ((200, '{"scores": [1, 2]}'), "answered without 'rewards': "),
        ((200, '{"rewards": [1]}'), "returned 1 scores for 2 samples"),
        ((200, '{"rewards": null}'), "returned None, not a list"),
        ((200, '{"rewards": [1, "2"]}'), "returned a str ('2'), not a number, on sample 's1'"),
        ((200, '{"rewards": [1e999, 1]}'), "returned inf on sample 's0' (1 of 2"),
        ((200, '{"rewards": [NaN, 1]}'), "returned nan on sample 's0'"),
    ],
)
def test_a_wrong_answer_is_the_users_to_mend_and_not_tried_again(
    answer: Answer, message: str, endpoint: Endpoint, make: Callable[..., HttpScorer]
) -> None:
    endpoint.answers = [answer]
    with pytest.raises(UserError) as caught:
        make(endpoint.url).score(SAMPLES, _never)
    assert caught.value.detail.startswith("reward 'judge' ")
    assert message in caught.value.detail
    assert "at all" not in caught.value.detail
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/x", "http://host:port/x"])
def test_what_is_no_url(url: str, make: Callable[..., HttpScorer]) -> None:
    with pytest.raises(UserError, match="is no URL"):
        make(url).score(SAMPLES, _never)


def test_many_threads_at_once(endpoint: Endpoint, make: Callable[..., HttpScorer]) -> None:
    scorer = make(endpoint.url)
    results: list[list[float | None]] = []
    threads = [
        threading.Thread(target=lambda: results.append(scorer.score(SAMPLES, _never)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1.0, None]] * 8
