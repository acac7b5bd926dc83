"""What both clients do with answers, refusals and broken connections."""

import json
from typing import Any

import httpx
import pytest

from rlhfless.client.requests import KEY_HINT
from rlhfless.errors import (
    CapacityError,
    ConflictError,
    InternalError,
    NotFoundError,
    RlhflessError,
    TransientError,
    UnauthenticatedError,
    UserError,
)
from rlhfless.rest import Job
from tests.support.clients import KEY, KINDS, Cut, Kind, Script, document, job, outcome, page

pytestmark = pytest.mark.parametrize("kind", KINDS)
ONE = job()["id"]


def refusing(error: RlhflessError, **headers: str) -> httpx.Response:
    return httpx.Response(error.status, json=error.to_problem(), headers=headers)


def test_an_answer_is_typed_and_its_request_has_the_key(kind: Kind) -> None:
    script = Script(document(**job(unheard_of="later release")))
    found = outcome(kind, script, lambda client: client.jobs.get(ONE))
    assert isinstance(found, Job)
    assert found.state == "running"
    (request,) = script.requests
    assert request.url == f"http://service/v1/jobs/{ONE}"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert "idempotency-key" not in request.headers


@pytest.mark.parametrize(
    "passing",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("silent"),
        httpx.ReadError("reset"),
        httpx.ReadTimeout("silent"),
        httpx.RemoteProtocolError("closed"),
        httpx.Response(200, stream=Cut(b'{"id": ')),
        httpx.Response(502, text="<html>bad gateway</html>"),
        httpx.Response(503, stream=Cut(b'{"det')),
        refusing(CapacityError("full")),
        refusing(TransientError("redis is away")),
        httpx.Response(429, json={"category": "capacity", "detail": "slowly"}),
        httpx.Response(504),
        httpx.Response(
            409, json={"type": "urn:rlhfless:StillWorkingError", "category": "transient"}
        ),
    ],
)
def test_what_passes_is_tried_again(kind: Kind, passing: Any) -> None:
    script = Script(passing, document(**job(state="cancelled")))
    done = outcome(kind, script, lambda client: client.jobs.cancel(ONE))
    assert done.state == "cancelled"
    assert len(script.slept) == 1
    keys = {request.headers["idempotency-key"] for request in script.requests}
    assert len(keys) == 1
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    "error",
    [
        UserError("wrong", param="seed", hint="write a number"),
        NotFoundError("no such job"),
        ConflictError("too late"),
        UnauthenticatedError("no key", hint=KEY_HINT),
        InternalError("a defect"),
    ],
)
def test_a_refusal_is_raised_as_it_was_meant(kind: Kind, error: RlhflessError) -> None:
    script = Script(refusing(error))
    with pytest.raises(type(error)) as raised:
        outcome(kind, script, lambda client: client.jobs.get(ONE))
    assert raised.value.to_problem() == error.to_problem()
    assert not script.slept


def test_patience_ends(kind: Kind) -> None:
    script = Script(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(TransientError, match=r"cannot reach .* http://service") as raised:
        outcome(kind, script, lambda client: client.jobs.get(ONE), retries=2)
    assert "rlhfless serve" in (raised.value.hint or "")
    assert len(script.requests) == 3
    assert script.slept == sorted(script.slept)


def test_the_service_may_ask_for_more_patience(kind: Kind) -> None:
    slowly = CapacityError("slowly")
    script = Script(
        httpx.Response(429, json=slowly.to_problem(), headers={"Retry-After": "7"}),
        refusing(slowly, **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        document(**job()),
    )
    outcome(kind, script, lambda client: client.jobs.get(ONE))
    assert script.slept[0] == 7
    assert script.slept[1] < 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(200, text="<html>hello</html>"), InternalError),
        (httpx.Response(200, json={"hello": 1}), InternalError),
        (httpx.Response(200, json=[]), InternalError),
        (httpx.Response(404, text="nothing here"), UserError),
        (httpx.Response(404, json=["nothing"]), UserError),
        (httpx.Response(307, headers={"Location": "http://elsewhere"}), UserError),
        (httpx.Response(500, text="oh"), InternalError),
    ],
)
def test_what_is_not_our_service_is_told(
    kind: Kind, answer: httpx.Response, error: type[RlhflessError]
) -> None:
    script = Script(answer)
    with pytest.raises(error):
        outcome(kind, script, lambda client: client.jobs.get(ONE))
    assert len(script.requests) == 1


def test_a_name_leads_nowhere_else(kind: Kind) -> None:
    script = Script(document(**job()))
    outcome(kind, script, lambda client: client.jobs.get("../files?x=1#y"))
    assert script.paths == ["/v1/jobs/..%2Ffiles%3Fx%3D1%23y"]


def test_a_list_goes_on_from_page_to_page(kind: Kind) -> None:
    script = Script(page(job(5), job(4), more=True), httpx.Response(502), page(job(3)))
    jobs = outcome(kind, script, lambda client: client.jobs.list())
    assert [each.id for each in jobs] == [job(n)["id"] for n in (5, 4, 3)]
    assert script.paths[0] == "/v1/jobs?limit=100"
    assert script.paths[1] == script.paths[2] == f"/v1/jobs?limit=100&after={job(4)['id']}"


def test_a_list_that_is_not_read_on_asks_for_no_more(kind: Kind) -> None:
    script = Script(page(job(5), job(4), more=True))

    if kind == "waiting":
        outcome(kind, script, lambda client: next(client.jobs.list()))
    else:
        outcome(kind, script, lambda client: anext(client.jobs.list()))
    assert len(script.requests) == 1


def test_a_deletion_whose_answer_was_lost_is_done(kind: Kind) -> None:
    gone = refusing(NotFoundError("no such file"))
    script = Script(httpx.ReadError("reset"), gone)
    assert outcome(kind, script, lambda client: client.files.delete("file-1")) is None
    with pytest.raises(NotFoundError):
        outcome(kind, Script(gone), lambda client: client.files.delete("file-1"))


def test_a_budget_is_changed_as_a_job_resumes(kind: Kind) -> None:
    script = Script(document(**job()), document(**job()))
    outcome(kind, script, lambda client: client.jobs.resume(ONE))
    outcome(kind, script, lambda client: client.jobs.resume(ONE, budget={"max_usd": 5}))
    assert script.requests[0].content == b""
    assert json.loads(script.requests[1].content) == {"budget": {"max_usd": 5}}


def test_usage_has_all_steps(kind: Kind) -> None:
    def usage(*steps: int, more: bool) -> httpx.Response:
        data = [{"id": str(step), "step": step, "functions": {}} for step in steps]
        return document(total={}, functions={}, wall_s=1.0, data=data, has_more=more)

    script = Script(usage(1, 2, more=True), usage(3, more=False))
    found = outcome(kind, script, lambda client: client.jobs.usage(ONE))
    assert [step.step for step in found.data] == [1, 2, 3]
    assert script.paths[1].endswith("/usage?limit=100&after=2")


def test_a_job_is_waited_for(kind: Kind) -> None:
    states = ["queued", "running", "running", "succeeded"]
    script = Script(*(document(**job(state=state)) for state in states))
    done = outcome(kind, script, lambda client: client.jobs.wait(ONE))
    assert done.state == "succeeded"
    assert len(script.slept) == 3


def test_who_waits_in_vain_is_told(kind: Kind) -> None:
    script = Script(document(**job()))
    with pytest.raises(TransientError, match="still running after 0 s"):
        outcome(kind, script, lambda client: client.jobs.wait(ONE, timeout_s=0))


def test_a_key_that_is_no_header_is_refused(kind: Kind) -> None:
    script = Script(httpx.LocalProtocolError("Illegal header value"))
    with pytest.raises(UserError, match="cannot ask http://service"):
        outcome(kind, script, lambda client: client.jobs.get(ONE))
