"""Token-level collection of a step's samples. Pure: frames in, finished samples out.

The collector is the one place that knows what has been generated. It holds every token that was
ever streamed, so an actor that dies costs only what it had not yet sent; what is left of its
samples goes to another actor as ``SampleTask``s that start where the stream broke off.

Guarantees: tokens of a sample are appended in order, exactly once; a frame that repeats positions
already held is accepted where it agrees and changes nothing; a gap or a disagreement is an error.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import Finished, FinishReason, SampleTask, Struct, Tokens


@dataclass(frozen=True)
class Sample:
    """A sample to be generated. ``group`` is the index of its prompt in the step."""

    id: str
    group: int
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int


class FinishedSample(Struct, frozen=True, kw_only=True):
    """A complete response. ``logprobs``: float32 LE, one per token; ``versions`` run-length
    encoded as ``[version, count, ...]``."""

    id: str
    tokens: list[int]
    logprobs: bytes
    reason: FinishReason
    versions: list[int]


@dataclass(slots=True)
class _Response:
    """``finished``: what it became, which shares ``tokens``; nothing is appended to it after."""

    tokens: list[int] = field(default_factory=list)
    logprobs: bytearray = field(default_factory=bytearray)
    versions: list[int] = field(default_factory=list)
    finished: FinishedSample | None = None


class Collector:
    """State of one step's rollout.

    For those who look at all samples at once it is kept in columns as well: ``places`` by id of
    ``group``, ``prompt_tokens``, ``generated`` (response tokens held) and ``ended``, all ``[N]``.
    """

    def __init__(self, samples: Iterable[Sample], done: Iterable[FinishedSample] = ()) -> None:
        self.samples = {sample.id: sample for sample in samples}
        self.ids = tuple(self.samples)
        self.places = {sample_id: place for place, sample_id in enumerate(self.ids)}
        self.group = np.array([s.group for s in self.samples.values()], np.int64)
        self.prompt_tokens = np.array([len(s.prompt) for s in self.samples.values()], np.int64)
        self.generated = np.zeros(len(self.ids), np.int64)
        self.ended = np.zeros(len(self.ids), np.bool_)
        self._responses = {sample_id: _Response() for sample_id in self.ids}
        for finished in done:
            self._responses[finished.id] = _Response(finished.tokens, finished=finished)
            self.generated[self.places[finished.id]] = len(finished.tokens)
            self.ended[self.places[finished.id]] = True

    def tokens(self, ids: Sequence[str], frame: Tokens) -> int:
        """Take a frame of the call that was given the samples ``ids``; returns new tokens taken."""
        offset = taken = 0
        if len(frame.logprobs) != 4 * len(frame.tokens):
            raise TransientError("a token frame does not carry one log-prob per token")
        for index, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
            tokens = frame.tokens[offset : offset + count]
            logprobs = frame.logprobs[4 * offset : 4 * (offset + count)]
            offset += count
            taken += self._append(ids[index], start, tokens, logprobs, frame.version)
        return taken

    def finished(self, ids: Sequence[str], frame: Finished) -> list[FinishedSample]:
        """Mark samples complete; returns those that were not before."""
        complete = []
        for index, reason in zip(frame.samples, frame.reasons, strict=True):
            response = self._responses[ids[index]]
            if response.finished is None:
                if not response.tokens:
                    raise TransientError(f"sample {ids[index]} ended without a token")
                response.finished = FinishedSample(
                    id=ids[index],
                    tokens=response.tokens,
                    logprobs=bytes(response.logprobs),
                    reason=reason,
                    versions=response.versions,
                )
                response.logprobs = bytearray()
                self.ended[self.places[ids[index]]] = True
                complete.append(response.finished)
        return complete

    def remaining(self, ids: Iterable[str]) -> list[str]:
        """Those of ``ids`` that are not finished, in order."""
        return [i for i in ids if self._responses[i].finished is None]

    def all_remaining(self) -> list[str]:
        return self.remaining(self.samples)

    def done(self) -> list[FinishedSample]:
        """Every finished sample, in the step's order."""
        return [r.finished for r in self._responses.values() if r.finished is not None]

    def num_tokens(self) -> int:
        """Tokens of all prompts, for every sample, and responses so far."""
        return int(self.prompt_tokens.sum() + self.generated.sum())

    def task(self, sample_id: str, prompt: int) -> SampleTask:
        """What tells a call to generate, or continue, the sample; ``prompt``: its index there."""
        sample = self.samples[sample_id]
        return SampleTask(
            id=sample_id,
            prompt=prompt,
            seed=sample.seed,
            max_tokens=sample.max_tokens,
            tokens=list(self._responses[sample_id].tokens),
        )

    def response(self, sample_id: str) -> FinishedSample:
        finished = self._responses[sample_id].finished
        if finished is None:
            raise InternalError(f"sample {sample_id} is not finished")
        return finished

    def _append(
        self, sample_id: str, start: int, tokens: list[int], logprobs: bytes, version: int
    ) -> int:
        response = self._responses[sample_id]
        held = len(response.tokens)
        if start > held:
            raise TransientError(f"sample {sample_id}: tokens {held} to {start} are missing")
        if start < held:
            known = held - start
            if response.tokens[start : start + len(tokens)] != tokens[:known]:
                raise InternalError(
                    f"sample {sample_id}: a repeated stream disagrees with the tokens held",
                    hint="two instances computed different tokens for one sample and seed",
                )
            tokens, logprobs = tokens[known:], logprobs[4 * known :]
        if not tokens:
            return 0
        if response.finished is not None:
            raise InternalError(f"sample {sample_id}: tokens after its end")
        response.tokens += tokens
        response.logprobs += logprobs
        self.generated[self.places[sample_id]] += len(tokens)
        if response.versions[-2:-1] == [version]:
            response.versions[-1] += len(tokens)
        else:
            response.versions += [version, len(tokens)]
        return len(tokens)


def logprob_values(logprobs: bytes) -> array.array[float]:
    """Float32 LE bytes as numbers."""
    values = array.array("f")
    values.frombytes(logprobs)
    return values
