"""A step's samples in the object store: what the model was asked, what it said, what that earned.

    samples/{job}/step-000001.jsonl.gz    one line a sample, in the step's order; steps count from 1

Written before the step is committed, and again by whoever takes the step over: readers show the
steps that are committed, whose samples the journal makes the same for all who write them.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from controller.collector import logprob_values
from controller.job import Data, StepSamples
from controller.sample_rows import sample_rows
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec

DIGITS = 4
"""Of a log-prob, after the point."""
COMPRESSION = 3
"""Beyond this gzip takes much longer for little less."""


class SampleRow(msgspec.Struct, frozen=True, kw_only=True):
    """``pieces`` ``[T]``: the response's tokens as text; ``logprobs`` ``[T]``: under the policy
    that sampled them, null where one is no number. ``rewards``: by name, null where one does not
    apply."""

    id: str
    prompt: Any
    completion: str
    reward: float
    rewards: dict[str, float | None]
    num_tokens: int
    finish_reason: str
    version: int
    pieces: list[str] = []
    logprobs: list[float | None] = []


def samples_name(job: str, step: int) -> str:
    """The object of a step, counted from 1."""
    return f"samples/{job}/step-{step:06d}.jsonl.gz"


class SampleKeeper:
    """Writes the samples of a job's steps; call it in a thread (``Job.keep_samples``)."""

    def __init__(self, objects: ObjectStore, job: str, spec: JobSpec, data: Data) -> None:
        self._objects = objects
        self._job = job
        self._spec = spec
        self._data = data
        self._piece = _cached(data.tokenizer.piece)

    def __call__(self, done: StepSamples) -> None:
        texts = self._data.decode([sample.tokens for sample in done.samples])
        encoder = msgspec.json.Encoder(enc_hook=str)  # a prompt may hold a date
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=COMPRESSION, mtime=0) as file:
            for sample, row in sample_rows(done, self._spec, texts):
                row["pieces"] = [self._piece(token) for token in sample.tokens]
                row["logprobs"] = [round(p, DIGITS) for p in logprob_values(sample.logprobs)]
                file.write(encoder.encode(row) + b"\n")
        self._objects.put(samples_name(self._job, done.step + 1), packed.getvalue())


def _cached(piece: Callable[[int], str]) -> Callable[[int], str]:
    """A vocabulary is small beside the tokens of a job."""
    known: dict[int, str] = {}

    def cached(token: int) -> str:
        found = known.get(token)
        if found is None:
            found = known[token] = piece(token)
        return found

    return cached


def unpack(packed: bytes) -> Sequence[bytes]:
    """The lines of a step's object. Raises ``ValueError`` if it is not whole."""
    try:
        lines = gzip.decompress(packed).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error
    if not lines:
        raise ValueError("there are no samples")
    return lines
