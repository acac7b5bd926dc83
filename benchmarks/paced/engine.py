"""An ``Engine`` of the rollout function that pretends: its own decode loop, steering, prefixes and
weights, over a decoder that sleeps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict

import msgspec

from benchmarks.paced.decoder import PacedDecoder
from benchmarks.paced.model import PacedModel
from benchmarks.paced.pace import KV_LAYOUT, PACE, Clock, Pace, PacedObjects
from benchmarks.paced.segments import Segments
from functions.context import CallContext
from functions.modeling import PullStats
from functions.rollout.admission import PREFILL_CHUNK_TOKENS, Admission, Limits
from functions.rollout.engine import RolloutFrame
from functions.rollout.generation import Generation
from functions.rollout.prefixes import PrefixBooks, Prefixes
from functions.rollout.request import check_roster
from functions.rollout.roster import Roster
from functions.weights.tensors import num_bytes, pull
from prefix_cache.keys import KvIdentity
from prefix_cache.store import KvStore
from rlhfless.errors import TransientError
from rlhfless.messages import ModelRef, PrefillDone, PrefillRequest, PrefixUse, RolloutRequest
from rlhfless.objects import ObjectStore

LATENESS_FILE = "lateness.jsonl"
"""In the model's folder: a line a call, how well its clock was kept (``pace.Lateness``)."""


class PacedEngine:
    """An ``Engine``. One request at a time."""

    def __init__(self, pace: Pace = PACE) -> None:
        self._pace = pace
        self._clock = Clock()
        self._kv = KvStore()
        self._model: PacedModel | None = None
        self._ref: ModelRef | None = None
        self._pulled = PullStats()

    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        began = time.perf_counter()
        self._pulled = PullStats()
        if self._model is None or self._ref is None or self._ref.path != ref.path:
            self._model = PacedModel(ref.path)
        if ref.version and self._ref != ref:
            manifest, _ = pull(store, ref.job, ref.version)
            self._clock.work(self._pace.pull_s)
            self._pulled = PullStats(time.perf_counter() - began, num_bytes(manifest))
        self._ref, self._model.version = ref, ref.version
        self._kv.use(_identity(ref), KV_LAYOUT)
        return self._pulled

    def run(self, request: RolloutRequest, context: CallContext) -> Iterator[RolloutFrame]:
        model, pace = self._loaded(), self._pace
        roster = Roster.of(request)
        check_roster(roster, model.config)
        max_batch = min(request.max_batch or pace.max_batch, pace.max_batch)
        limits = Limits(max_batch, pace.kv_tokens, refill=max(1, max_batch // 16))
        prefixes = None if request.prefix is None else self._prefixes(request.prefix, context)
        decoder = PacedDecoder(model, pace, self._clock, prefixes)
        admission = Admission(roster, limits, shared=True)
        generation = Generation(request, roster, context, model, model.version, decoder, admission)
        yield from generation.frames()
        done = generation.done()
        books = PrefixBooks() if prefixes is None else prefixes.books
        self._write_lateness()
        yield msgspec.structs.replace(
            books.entered_in(done),
            weights_pull_s=self._pulled.seconds,
            weights_bytes=self._pulled.bytes,
            max_batch=limits.max_batch,
            kv_capacity=limits.kv_tokens,
            kv_token_bytes=KV_LAYOUT.token_bytes,
        )

    def prefill(self, request: PrefillRequest, context: CallContext) -> PrefillDone:
        model = self._loaded()
        check_roster(Roster(request.prompts, [], request.cuts), model.config)
        prefixes = self._prefixes(PrefixUse(cuts=[], publish=True), context)
        segments = Segments(self._pace, self._clock, prefixes)
        began = time.perf_counter()
        wanted = {
            (tuple(tokens[: ends[-1]]), tuple(ends))
            for tokens, ends in zip(request.prompts, request.cuts, strict=True)
            if ends
        }
        waiting = sorted(wanted)
        while waiting:
            if context.stop_reason is not None:
                raise TransientError(f"stopped ({context.stop_reason}) before all was computed")
            size = count = 0
            while count < len(waiting) and (
                not count or size + len(waiting[count][0]) <= PREFILL_CHUNK_TOKENS
            ):
                size += len(waiting[count][0])
                count += 1
            segments.run(waiting[:count])
            del waiting[:count]
        books = prefixes.books
        self._write_lateness()
        return PrefillDone(
            tokens_computed=segments.tokens,
            tokens_loaded=books.loaded + books.reused,
            prefill_s=time.perf_counter() - began - books.load_s - books.publish_s,
            published_bytes=books.published_bytes,
            publish_s=books.publish_s,
            weights_pull_s=self._pulled.seconds,
            weights_bytes=self._pulled.bytes,
        )

    def close(self) -> None:
        self._kv.clear()
        self._model = self._ref = None

    def _loaded(self) -> PacedModel:
        assert self._model is not None, "ensure was not called"
        return self._model

    def _prefixes(self, use: PrefixUse, context: CallContext) -> Prefixes:
        ref = self._ref
        assert ref is not None, "ensure was not called"
        return Prefixes(
            self._kv,
            _identity(ref),
            KV_LAYOUT,
            PacedObjects(context.store.url, self._pace),
            load=use.load,
            publish=use.publish,
        )

    def _write_lateness(self) -> None:
        assert self._ref is not None
        line = json.dumps(asdict(self._clock.take_lateness())) + "\n"
        with open(os.path.join(self._ref.path, LATENESS_FILE), "a", encoding="utf-8") as file:
            file.write(line)


def _identity(ref: ModelRef) -> KvIdentity:
    return KvIdentity(path=ref.path, job=ref.job, version=ref.version, dtype=ref.dtype)
