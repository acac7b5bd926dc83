"""Messages, signatures and deliveries, to a real server."""

import asyncio
import base64
import hashlib
import hmac
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.integrations import delivery, webhooks
from controller.integrations.delivery import deliver
from controller.integrations.messages import Refused, message, post, signature, wants
from controller.integrations.webhooks import telling
from rlhfless.errors import TransientError, UserError
from rlhfless.spec import WebhookSpec
from simulator.clock import run
from tests.support.receiver import receiving
from tests.support.trackers import JOB, job_spec, step

CONTENT = message("1-0", 1000.5, JOB, "quick-start", "state", {"state": "running", "reason": None})


def send(webhook: WebhookSpec, **how: Any) -> None:
    asyncio.run(post(webhook, CONTENT, 1234.9, **({"trusted": True} | how)))


def test_a_message_is_json_and_signed() -> None:
    with receiving() as receiver:
        send(WebhookSpec(url=f"{receiver.url}/hook?a=1", secret="a shared secret"))
    (got,) = receiver.received
    assert got.path == "/hook?a=1"
    assert got.content == {
        "id": "1-0",
        "type": "job.state",
        "created_at": 1000.5,
        "job": JOB,
        "name": "quick-start",
        "state": "running",
        "reason": None,
    }
    assert (got.headers["webhook-id"], got.headers["webhook-timestamp"]) == ("1-0", "1234")
    signed = b"1-0.1234." + got.body
    expected = hmac.new(b"a shared secret", signed, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert got.headers["content-type"] == "application/json"


def test_the_signature_is_that_of_the_standards_own_example() -> None:
    """Of https://github.com/standard-webhooks/standard-webhooks, its libraries' tests."""
    body = b'{"test": 2432232314}'
    made = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_a_secret_nothing_is_signed() -> None:
    with receiving() as receiver:
        send(WebhookSpec(url=receiver.url.replace("//", "//me:p%40ss@")))
    (got,) = receiver.received
    assert "webhook-signature" not in got.headers
    assert got.path == "/"
    assert base64.b64decode(got.headers["authorization"].removeprefix("Basic ")) == b"me:p@ss"
    assert "@" not in got.headers["host"]


@pytest.mark.parametrize("status", [302, 400, 500])
def test_what_is_no_success_is_refused_and_redirects_are_not_followed(status: int) -> None:
    with receiving(status) as receiver, pytest.raises(Refused, match=str(status)):
        send(WebhookSpec(url=receiver.url))
    assert len(receiver.received) == 1


def test_a_strangers_webhook_reaches_no_address_of_ours() -> None:
    with receiving() as receiver:
        webhook = WebhookSpec(url=receiver.url)
        with pytest.raises(UserError, match="not a host of the public internet"):
            send(webhook, trusted=False)
        assert receiver.received == []
        send(webhook, trusted=False, allowed_urls=(receiver.url,))
    assert len(receiver.received) == 1


def test_nobody_there_is_worth_another_attempt() -> None:
    with receiving() as receiver:
        url = receiver.url
    with pytest.raises(TransientError):
        send(WebhookSpec(url=url))


def test_events_are_chosen() -> None:
    usual = WebhookSpec(url="http://x")
    assert wants(usual, "state", {"state": "failed"})
    assert not wants(usual, "state", {"state": "queued"})
    assert not wants(usual, "step", {"step": 1})
    assert not wants(usual, "notice", {})
    assert wants(WebhookSpec(url="http://x", events=["step"]), "step", {"step": 1})


class Attempts:
    """``answers``: exceptions, or None for success; then success."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.at: list[float] = []
        self.said: list[str] = []

    async def __call__(self, content: Mapping[str, Any], now_s: float) -> None:
        self.at.append(now_s)
        error = self.answers.pop(0) if self.answers else None
        if error is not None:
            raise error

    async def _failed(self, why: str) -> None:
        self.said.append(why)

    def deliver(self, created_at: float = 0.0) -> None:
        async def play() -> None:
            loop = asyncio.get_running_loop()
            content = {"id": "1", "created_at": created_at}
            await deliver(content, self, failed=self._failed, rng=random.Random(1), now=loop.time)

        run(play())


def test_attempts_pause_longer_and_longer() -> None:
    attempts = Attempts(Refused(500), TransientError("away"), *[Refused(503)] * 12)
    attempts.deliver()
    pauses = [b - a for a, b in zip(attempts.at, attempts.at[1:], strict=False)]
    for index, pause in enumerate(pauses):
        whole = min(2.0**index, delivery.LONGEST_PAUSE_S)
        assert whole / 2 <= pause <= whole
    assert len(attempts.at) == 15
    assert attempts.said == ["answered with status 500; tried again for a day"]


def test_a_message_is_given_up_after_a_day() -> None:
    attempts = Attempts(*[Refused(500)] * 10_000)
    attempts.deliver()
    day = delivery.GIVE_UP_AFTER_S
    assert day < attempts.at[-1] <= day + delivery.LONGEST_PAUSE_S
    assert attempts.said[-1] == "answered with status 500; given up"


def test_an_old_message_is_tried_once_more() -> None:
    attempts = Attempts(*[Refused(500)] * 10)
    attempts.deliver(created_at=-2 * delivery.GIVE_UP_AFTER_S)
    assert len(attempts.at) == 1


def test_a_receiver_that_is_gone_is_left_alone() -> None:
    attempts = Attempts(Refused(410), Refused(410))
    attempts.deliver()
    assert (len(attempts.at), attempts.said) == (1, ["answered with status 410; given up"])


def tell(spec: Any, error: BaseException | None = None, warnings: list[str] | None = None) -> None:
    async def play() -> None:
        async with telling(spec, JOB, (warnings or []).append) as told:
            told.observe(step(1))
            if error is not None:
                raise error
            told.ended("paused", "the budget is used up")

    asyncio.run(play())


def test_a_run_tells_its_states_in_order() -> None:
    with receiving(500) as receiver:
        tell(job_spec(webhooks=[{"url": receiver.url, "events": ["running", "paused", "step"]}]))
    first, again, *more = [m.content for m in receiver.received]
    assert first == again  # with its id, so that one of them can be dropped
    assert [c["type"] for c in (again, *more)] == ["job.state", "job.step", "job.state"]
    assert more[0]["metrics"]["reward/mean"] == 0.1
    assert (more[1]["state"], more[1]["reason"]) == ("paused", "the budget is used up")
    assert len({c["id"] for c in (again, *more)}) == 3


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (UserError("the reward is wrong"), "failed", "the reward is wrong"),
        (asyncio.CancelledError(), "paused", "interrupted"),
    ],
)
def test_how_a_run_ends_is_told(error: BaseException, state: str, reason: str) -> None:
    with receiving() as receiver, pytest.raises(type(error)):
        tell(job_spec(webhooks=[{"url": receiver.url}]), error)
    last = receiver.received[-1].content
    assert (last["state"], last["reason"]) == (state, reason)


def test_nobody_waits_long_for_a_receiver_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "CLOSE_S", 0.2)
    with receiving() as receiver:
        url = receiver.url
    warnings = ["begin"]
    tell(job_spec(webhooks=[{"url": f"{url}/token"}]), warnings=warnings)
    assert warnings[-1] == "webhook 127.0.0.1: messages were not delivered"
    assert not any("token" in warning for warning in warnings)


def test_the_documented_check_verifies_what_is_sent() -> None:
    page = (Path(__file__).parents[4] / "docs" / "integrations.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)  # the page's own code
    with receiving() as receiver:
        webhook = WebhookSpec(url=receiver.url, secret="a shared secret")
        asyncio.run(post(webhook, CONTENT, time.time(), trusted=True))
    (got,) = receiver.received
    assert names["verified"]("a shared secret", got.headers, got.body)
    assert not names["verified"]("another secret", got.headers, got.body)
    assert not names["verified"]("a shared secret", got.headers, got.body + b" ")
