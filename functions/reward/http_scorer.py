"""A reward behind an HTTP endpoint: ``POST {prompts, completions, completion_ids, columns}`` as
JSON, answered by ``{"rewards": [number or null, ...]}``.

Broken connections, 5xx, 408 and 429 are tried again with growing, jittered pauses, all within the
reward's ``timeout_s``; then the call fails as transient. Other answers are the user's to mend.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading

import httpx
import msgspec

from functions.reward.process import SLICE_S, CallCancelled, Cancelled
from functions.reward.scorer import Samples, fault
from functions.reward.scores import BadScore, to_scores
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import RewardFunction

ATTEMPTS = 4
FIRST_PAUSE_S = 0.2
_RETRIED = (408, 429)


class HttpScorer:
    """See ``Scorer``. Calls of many threads run side by side on one event loop of its own, so that
    a call which is no longer wanted ends at once."""

    def __init__(self, function: RewardFunction, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._function = function
        self._first_pause_s = first_pause_s
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(timeout=function.timeout_s)
        self._jitter = random.Random(function.target)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"reward-{function.name}", daemon=True
        )
        self._thread.start()

    def score(self, samples: Samples, cancelled: Cancelled) -> list[float | None]:
        call = asyncio.run_coroutine_threadsafe(self._score(samples), self._loop)
        while True:
            try:
                return call.result(timeout=SLICE_S)
            except TimeoutError:
                if cancelled():
                    call.cancel()
                    raise CallCancelled from None

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _score(self, samples: Samples) -> list[float | None]:
        request = samples.request
        body = msgspec.json.encode(
            {
                "prompts": request.prompts,
                "completions": request.completions,
                "completion_ids": request.completion_ids,
                "columns": request.columns,
            }
        )
        problem = "no answer"
        try:
            async with asyncio.timeout(self._function.timeout_s):
                for attempt in range(ATTEMPTS):
                    if attempt:
                        pause_s = self._first_pause_s * 2 ** (attempt - 1)
                        await asyncio.sleep(pause_s * self._jitter.uniform(0.5, 1.5))
                    answer = await self._post(body)
                    if isinstance(answer, httpx.Response):
                        return self._read(answer, samples)
                    problem = answer
        except TimeoutError:
            problem = f"{problem} within {self._function.timeout_s:g} s"
        raise TransientError(
            f"reward {self._function.name!r} at {self._function.target}: {problem}",
            hint="is the endpoint up, and reachable from where the reward function runs?",
        )

    async def _post(self, body: bytes) -> httpx.Response | str:
        """The answer, or why it is worth another attempt."""
        try:
            response = await self._client.post(
                self._function.target,
                content=body,
                headers={"content-type": "application/json", "accept": "application/json"},
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UserError(
                f"reward {self._function.name!r}: {self._function.target!r} is no URL ({error})"
            ) from error
        except httpx.RequestError as error:
            return f"{type(error).__name__} {error}".rstrip()
        if response.status_code >= 500 or response.status_code in _RETRIED:
            return f"status {response.status_code}{_first_line(response)}"
        return response

    def _read(self, response: httpx.Response, samples: Samples) -> list[float | None]:
        if not response.is_success:
            what = f"answered with status {response.status_code}{_first_line(response)}"
            raise fault(self._function, samples, what, hint=f"POST {self._function.target}")
        try:
            answer = json.loads(response.content)  # takes NaN, so that its sample can be named
        except ValueError:
            what = f"answered with something that is no JSON{_first_line(response)}"
            raise fault(self._function, samples, what) from None
        if not isinstance(answer, dict) or "rewards" not in answer:
            what = f"answered without 'rewards'{_first_line(response)}"
            raise fault(self._function, samples, what, hint='the answer is {"rewards": [...]}')
        try:
            return to_scores(answer["rewards"], len(samples))
        except BadScore as error:
            raise fault(
                self._function, samples, f"returned {error}", sample=error.sample
            ) from error


def _first_line(response: httpx.Response) -> str:
    lines = response.text.strip().splitlines()
    return f": {lines[0][:200]}" if lines else ""
