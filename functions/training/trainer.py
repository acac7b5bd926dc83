"""Train calls without state: commit the next version once, whatever repeats, dies or comes late.

The trainer caches the learner of the version it used last. A call on another parent, or on another
instance, restores it: the newest checkpoint at or before the parent, then every version since is
made again from its recorded request and batch, without committing, and compared with what was
committed. So results do not depend on which instance serves which call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from functions.context import CallContext
from functions.training.crew import Crew
from functions.training.learner import Terms
from functions.training.restore import Replay, from_store
from functions.weights.tensors import holds, publish
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import (
    Frame,
    GradientsDone,
    GradientsRequest,
    Heartbeat,
    TrainDone,
    TrainRequest,
    finite,
)
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, committed, read_manifest

HEARTBEAT_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True)
class _Cached:
    """A learner at a version, and what it was built from."""

    key: tuple[object, ...]
    state: Replay


class Trainer:
    """Serves ``TrainRequest`` and ``GradientsRequest``, one call at a time."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._cached: _Cached | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        self._cached = None
        self._crew.close()

    def train(self, request: TrainRequest, context: CallContext) -> Generator[Frame, None, None]:
        """Make version ``request.model.version + 1``; the last frame is ``TrainDone``.

        Raises ``ConflictError`` if another call made it, ``TransientError`` when told to stop
        (nothing is committed then), ``UserError`` and ``InternalError`` as ``Update`` does.
        """
        with self._lock:
            yield from self._train(request, context)

    def gradients(
        self, request: GradientsRequest, context: CallContext
    ) -> Generator[Frame, None, None]:
        """Do ahead what can be done with a part of the next train call's batch, and keep it for
        that call; the last frame is ``GradientsDone``. Nothing is to be done once it was made.

        Raises ``TransientError`` when told to stop (what was done is kept), else as ``begin`` does.
        """
        with self._lock:
            yield from self._gradients(request, context)

    def _train(self, request: TrainRequest, context: CallContext) -> Generator[Frame, None, None]:
        store, job, parent = context.store, request.model.job, request.model.version
        earlier = committed(store, job, parent + 1, request.call.id)
        if earlier is not None:
            yield _repeated(earlier)
            return
        started = time.perf_counter()
        state = yield from self._at_parent(request, context)
        restored_at = time.perf_counter()
        metrics = yield from _paced(self._crew.update(state.learner, store, request), context)
        metrics = finite(metrics | state.metrics())
        trained_at = time.perf_counter()

        learner = state.learner
        with self._crew.tensors(learner) as tensors:
            manifest, ours = publish(
                store,
                job,
                parent,
                tensors.version,
                kind=learner.policy.kind,
                call_id=request.call.id,
                lora=learner.policy.lora,
                attachments=tensors.checkpoint() if request.checkpoint else None,
                metrics=metrics,
                train_request=msgspec.to_builtins(request),
                data_position=request.data_position,
            )
            current = ours or holds(manifest, tensors.version)
        if current:
            made = Replay(self._crew, store, learner, parent + 1, frozenset(manifest.files))
            self._cached = _Cached(_key(request), made)
        if not ours:
            yield _repeated(manifest)
            return
        yield TrainDone(
            version=manifest.version,
            metrics=metrics,
            train_s=trained_at - restored_at,
            publish_s=time.perf_counter() - trained_at,
            restore_s=restored_at - started,
        )

    def _gradients(
        self, request: GradientsRequest, context: CallContext
    ) -> Generator[Frame, None, None]:
        if read_manifest(context.store, request.model.job, request.model.version + 1) is not None:
            yield GradientsDone()
            return
        state = yield from self._at_parent(request, context)
        self._cached = _Cached(_key(request), state)  # the weights stay, whatever happens here
        yield from _paced(self._crew.begin(state.learner, request), context)
        done = state.learner.ahead
        yield GradientsDone(num_samples=0 if done is None else len(done.digests))

    def _at_parent(self, request: Terms, context: CallContext) -> Generator[Frame, None, Replay]:
        """A learner at the parent version, taken out of the cache: until the call has ended well it
        is in no known state."""
        job, parent = request.model.job, request.model.version
        if parent and read_manifest(context.store, job, parent) is None:
            raise UserError(
                f"version {parent} of job {job} is not in {context.store.url}",
                param="model.version",
            )
        replay = self._from_cache(request, context.store)
        if replay is None:
            replay = from_store(request, context.store, self._crew)
        while replay.version < parent:
            yield from _paced(replay.forward(job, parent), context, stop_at_deadline=False)
            if context.stop_reason is not None:  # what was replayed serves the next attempt
                rest = Replay(
                    self._crew, context.store, replay.learner, replay.version, replay.files
                )
                self._cached = _Cached(_key(request), rest)
                raise _stopped(context)
        return replay

    def _from_cache(self, request: Terms, store: ObjectStore) -> Replay | None:
        """The cached learner if it is the parent, or on the way to it: ``files`` of a version's
        manifest name the very attempt that wrote it."""
        cached, self._cached = self._cached, None
        if cached is None or cached.key != _key(request):
            return None
        state, parent = cached.state, request.model.version
        if state.version == 0:
            return state if parent == 0 and state.learner.seed == request.seed else None
        if state.version > parent:
            return None
        manifest = read_manifest(store, request.model.job, state.version)
        if manifest is None or frozenset(manifest.files) != state.files:
            return None
        return state


def _paced(
    work: Generator[None, None, T], context: CallContext, *, stop_at_deadline: bool = True
) -> Generator[Frame, None, T]:
    """Drive ``work`` with a heartbeat now and then. Raises ``TransientError`` when told to stop."""
    started = beat = time.monotonic()
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        reason = context.stop_reason
        if reason is not None and (stop_at_deadline or reason != "deadline"):
            work.close()
            raise _stopped(context)
        now = time.monotonic()
        if now - beat >= HEARTBEAT_S:
            beat = now
            yield Heartbeat(busy_s=now - started)


def _stopped(context: CallContext) -> TransientError:
    return TransientError(
        f"training was stopped ({context.stop_reason}) before it was done; nothing was committed"
    )


def _repeated(manifest: Manifest) -> TrainDone:
    return TrainDone(version=manifest.version, metrics=manifest.metrics, repeated=True)


def _key(request: Terms) -> tuple[object, ...]:
    """What a learner is built from; the rest of a request may change from call to call."""
    s = request.optimization
    return (
        request.call.store,
        request.model.job,
        request.model.path,
        request.model.dtype,
        request.algorithm.advantage == "gae",
        (s.trainable, s.top_layers, s.gradient_checkpointing),
        (s.lora_rank, s.lora_alpha, s.lora_dropout, tuple(s.lora_targets or ())),
    )
