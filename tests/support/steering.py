"""What calls that are changed while they run must say of their samples, whoever generates them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from rlhfless.messages import (
    AnyFrame,
    Finished,
    Frame,
    Released,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)


@dataclass
class Response:
    """All that was streamed of a sample, by whichever calls."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str | None = None


Responses = dict[str, Response]


def fresh(tasks: list[SampleTask]) -> Responses:
    return {task.id: Response(list(task.tokens)) for task in tasks}


def continued(task: SampleTask, responses: Responses, **changes: Any) -> SampleTask:
    """The sample from where its stream broke off."""
    return msgspec.structs.replace(task, tokens=list(responses[task.id].tokens), **changes)


def assert_same(found: Responses, expected: Responses) -> None:
    """Tokens are equal; log-probs to float tolerance, for they come of other batches."""
    assert found.keys() == expected.keys()
    for name, response in found.items():
        assert response.tokens == expected[name].tokens, name
        assert response.reason == expected[name].reason is not None, name
        np.testing.assert_allclose(response.logprobs, expected[name].logprobs, atol=1e-4, rtol=0)


class CallRecord:
    """Follows the stream of one call: every token once, nothing after a sample has left.

    ``here``: ids of the samples that the call has. ``context_tokens``: what its iterations must
    have attended to.
    """

    def __init__(self, request: RolloutRequest, responses: Responses) -> None:
        self.request = request
        self.responses = responses
        self.tasks = list(request.samples)
        self.prompts = list(request.prompts)
        self.here = {task.id for task in self.tasks}
        self.done: RolloutDone | None = None
        self.context_tokens = self.num_tokens = self.num_changes = 0

    def change(self, **contents: Any) -> SteerRequest:
        """The next change; ``expect`` it before it is sent: its first tokens may be faster than the
        answer."""
        return SteerRequest(
            call=self.request.call,
            target=self.request.call.id,
            number=self.num_changes + 1,
            **contents,
        )

    def expect(self, change: SteerRequest) -> None:
        self.num_changes += 1
        self.tasks += change.samples
        self.prompts += change.prompts
        self.here.update(task.id for task in change.samples)

    def index_of(self, sample: str) -> int:
        """A sample that came back has several; the last one counts."""
        return max(n for n, task in enumerate(self.tasks) if task.id == sample)

    def take(self, frame: AnyFrame | Frame) -> list[str]:
        """The samples that were released by it."""
        assert self.done is None
        match frame:
            case Tokens():
                self._add(frame)
            case Finished():
                for index, reason in zip(frame.samples, frame.reasons, strict=True):
                    response = self.responses[self._leave(index)]
                    assert response.reason is None
                    response.reason = reason
            case Released():
                return [self._leave(index) for index in frame.samples]
            case RolloutDone():
                self.done = frame
                for index in frame.unfinished:
                    self._leave(index)
                assert frame.generated_tokens == self.num_tokens
                assert frame.context_tokens == self.context_tokens
        return []

    def assert_answered(self) -> None:
        """The call ended and said of each of its samples what became of it. To be asked when its
        changes are answered: a refusal may come later than the end of the stream."""
        assert self.done is not None
        assert not self.here

    def _add(self, frame: Tokens) -> None:
        values = np.frombuffer(frame.logprobs, dtype="<f4").tolist()
        assert len(values) == len(frame.tokens) == sum(frame.counts)
        offset = 0
        for index, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
            task = self.tasks[index]
            assert task.id in self.here
            response = self.responses[task.id]
            assert start == len(response.tokens)
            response.tokens += frame.tokens[offset : offset + count]
            response.logprobs += values[offset : offset + count]
            offset += count
        self.num_tokens += offset

    def _leave(self, index: int) -> str:
        task = self.tasks[index]
        self.here.remove(task.id)
        prompt, held = len(self.prompts[task.prompt]), len(self.responses[task.id].tokens)
        # The first new token comes of the prefill; each other attends to all before it.
        first = prompt + len(task.tokens) + 1
        self.context_tokens += sum(range(first, prompt + held))
        return task.id
