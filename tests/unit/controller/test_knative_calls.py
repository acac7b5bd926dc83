"""Calls through what stands between the controller and a pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from controller.platforms.knative_calls import (
    NotAdmittedError,
    Terms,
    call,
    poke,
    within,
)
from rlhfless.errors import (
    CapacityError,
    InternalError,
    RlhflessError,
    TransientError,
    UserError,
)
from rlhfless.frames import encode_frame
from rlhfless.messages import INSTANCE_HEADER, AnyFrame, Heartbeat, Problem, RolloutDone
from tests.support.processes import rollout

TERMS = Terms(token="t", request_s=600, silence_s=0.2)
Answer = Callable[[httpx.Request], httpx.Response]
DONE = RolloutDone(generated_tokens=1)


def called(answer: Answer, terms: Terms = TERMS) -> tuple[list[AnyFrame], list[str]]:
    """The frames, and which pods were told of."""
    frames: list[AnyFrame] = []
    pods: list[str] = []

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            async for frame in call(client, "http://fn", rollout(), terms, pods.append):
                frames.append(frame)  # noqa: PERF401

    asyncio.run(run())
    return frames, pods


def stream(*chunks: bytes, then_wait_s: float = 0.0) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        await asyncio.sleep(then_wait_s)

    return httpx.Response(200, headers={INSTANCE_HEADER: "pod-1"}, content=body())


def test_frames_and_who_sent_them() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        whole = encode_frame(Heartbeat(busy_s=1.0)) + encode_frame(DONE)
        return stream(whole[:7], whole[7:])

    assert called(answer) == ([Heartbeat(busy_s=1.0), DONE], ["pod-1"])
    (request,) = asked
    assert str(request.url) == "http://fn/v1/rollout"
    assert request.headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("status", [404, 502, 503, 504])
def test_what_a_gateway_refuses_was_not_admitted(status: int) -> None:
    with pytest.raises(NotAdmittedError, match="activator request timeout"):
        called(lambda _: httpx.Response(status, text="activator request timeout"))


@pytest.mark.parametrize("error", [CapacityError("full"), TransientError("draining")])
def test_a_function_that_is_full_or_drains_did_not_admit_it(error: RlhflessError) -> None:
    with pytest.raises(NotAdmittedError) as raised:
        called(lambda _: httpx.Response(503, json=error.to_problem()))
    assert type(raised.value.error) is type(error)


@pytest.mark.parametrize(
    ("answer", "family"),
    [
        (httpx.Response(401, json=UserError("the token is wrong").to_problem()), UserError),
        (httpx.Response(418, text="teapot"), InternalError),
    ],
)
def test_other_refusals_stand(answer: httpx.Response, family: type[RlhflessError]) -> None:
    with pytest.raises(family):
        called(lambda _: answer)


def test_a_problem_is_raised() -> None:
    problem = encode_frame(Problem(problem=UserError("no such model").to_problem()))
    with pytest.raises(UserError, match="no such model"):
        called(lambda _: stream(problem))


@pytest.mark.parametrize(
    "answer",
    [
        lambda: stream(encode_frame(Heartbeat())),
        lambda: stream(encode_frame(DONE)[:5]),
        lambda: stream(encode_frame(Heartbeat()), then_wait_s=5),
    ],
    ids=["no result", "half a frame", "silence"],
)
def test_a_stream_that_breaks_is_transient(answer: Callable[[], httpx.Response]) -> None:
    with pytest.raises(TransientError):
        called(lambda _: answer())


def test_a_connection_that_is_refused_was_not_admitted_and_one_that_breaks_may_have_been() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset", request=request)

    with pytest.raises(NotAdmittedError):
        called(refuse)
    with pytest.raises(TransientError):
        called(broken)


def test_deadlines_leave_time_to_hand_over_before_knative_cuts() -> None:
    request = rollout()
    assert request.call.deadline_s == 60
    assert within(request, 600) is request
    cut = within(request, 50)
    assert cut.call.deadline_s == 45
    assert cut.call.id == request.call.id


def test_a_poke_tells_what_went_wrong() -> None:
    async def run() -> None:
        answers = httpx.MockTransport(
            lambda request: httpx.Response(200 if request.url.host == "up" else 503)
        )
        async with httpx.AsyncClient(transport=answers) as client:
            assert await poke(client, "http://up", 1) == ""
            assert await poke(client, "http://down", 1) == "status 503"

    asyncio.run(run())
