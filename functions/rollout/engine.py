"""The seam between the rollout function and what generates: weights in, a request's frames out.

An engine is stateless between requests but for caches. The transformers engine
(``transformers_engine``) is the one there is; another engine takes its place behind these methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from functions.context import CallContext
from functions.modeling import PullStats
from rlhfless.messages import (
    Finished,
    ModelRef,
    PrefillDone,
    PrefillRequest,
    Progress,
    Released,
    RolloutDone,
    RolloutRequest,
    Tokens,
)
from rlhfless.objects import ObjectStore

RolloutFrame = Tokens | Finished | Released | Progress | RolloutDone


class Engine(Protocol):
    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        """Serve this version from now on, pulling it if it is not the present one."""
        ...

    def run(self, request: RolloutRequest, context: CallContext) -> Iterator[RolloutFrame]:
        """Generate the request's samples with the version ensured last.

        Yields ``Tokens`` (each token once, in order of positions per sample), ``Finished`` after
        the last tokens of a sample, ``Progress`` now and then, and ``RolloutDone`` at the end.
        Between iterations it carries out the changes that ``context.take`` gives: samples join,
        others are given up and named in ``Released`` after their tokens.
        Looks at ``context.stop_reason`` between iterations: when it is set, everything generated
        is yielded and the rest is named in ``RolloutDone.unfinished``. Raises ``UserError`` for a
        request that the model cannot serve, and for such a change, all tokens yielded.
        """
        ...

    def prefill(self, request: PrefillRequest, context: CallContext) -> PrefillDone:
        """See that the object store has the segments, with the version ensured last.

        Looks at ``context.stop_reason`` between passes. Raises ``TransientError`` if it is set, and
        ``UserError`` for what the model cannot take. An engine that keeps no prefixes does nothing.
        """
        ...

    def close(self) -> None:
        """Free the weights and caches."""
        ...
