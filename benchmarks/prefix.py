"""Prompts loaded from the KV store beside prompts computed.

    python -m benchmarks.prefix [--quick] [--json FILE] [--threads N] [--models NAME ...]

Four groups of 8 samples are split over four callers, so that each caller needs all four prompts.
By recompute, each caller prefills them. By load, each caller has computed and stored one of them in
a prefill call, and then loads all four (its memory of them is off, as if the samples had come to
another instance). ``load`` compares a caller's rollout call alone, one token a sample; ``in all``
counts its prefill call too. The store is a directory, so reads come from the page cache.

From the same calls the costs are fitted, and the planner is asked: it should store the prompts
from the length on where ``in all`` turns in favour of loading. A last line a model compares that
length, by the cost rule, with the one interpolated between the measured cases.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import common, models
from benchmarks.common import Result

CALLERS = 4
GROUP = 8
LENGTHS = {"quickstart": (16, 32, 64, 128, 256, 512, 1024), "smollm2": (16, 32, 256, 512, 1024)}
QUICK = {"quickstart": (16, 32, 128, 256, 512, 1024), "smollm2": (16, 32, 256)}


@dataclass
class Measured:
    """Seconds of one caller, best of the rounds: on a busy machine calls of a few milliseconds
    differ by their neighbours most of all. With them the books of each call's best round."""

    tokens: int
    recompute_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    recomputed: Any = None
    loaded: Any = None
    prefilled: Any = None

    @property
    def in_all_s(self) -> float:
        return self.prefill_s + self.load_s


class Callers:
    """An engine that remembers no prefixes, called as the rollout function calls it."""

    def __init__(self, folder: Path, store: str) -> None:
        import torch

        from functions.rollout.transformers_engine import TransformersEngine
        from prefix_cache.store import KvStore
        from rlhfless.messages import ModelRef
        from rlhfless.objects import ObjectStore

        self._engine = TransformersEngine(torch.device("cpu"), KvStore(memory_bytes=0))
        self._model = ModelRef(path=str(folder), job="benchmark", version=0)
        self.store = ObjectStore(store)
        self._engine.ensure(self._model, self.store)

    def rollout(self, prompts: list[list[int]], *, load: bool) -> Any:
        """One caller's share: two samples of each group, of one token; its ``RolloutDone``."""
        from functions.context import CallContext
        from rlhfless.messages import PrefixUse, RolloutRequest, SampleTask, SamplingParams

        share = GROUP // CALLERS
        request = RolloutRequest(
            call=self._call("rollout"),
            model=self._model,
            sampling=SamplingParams(),
            prompts=prompts,
            samples=[
                SampleTask(id=str(n), prompt=n // share, seed=n, max_tokens=1)
                for n in range(share * len(prompts))
            ],
            prefix=PrefixUse(cuts=[[len(prompt) - 1] for prompt in prompts]) if load else None,
        )
        *_, done = self._engine.run(request, CallContext(self.store, time.monotonic() + 1e6))
        return done

    def prefill(self, prompts: list[list[int]]) -> Any:
        from functions.context import CallContext
        from rlhfless.messages import PrefillRequest

        request = PrefillRequest(
            call=self._call("prefill"),
            model=self._model,
            prompts=prompts,
            cuts=[[len(prompt) - 1] for prompt in prompts],
        )
        return self._engine.prefill(request, CallContext(self.store, time.monotonic() + 1e6))

    def clear_store(self) -> None:
        for name in self.store.list("kv"):
            self.store.delete(name)

    def _call(self, name: str) -> Any:
        from rlhfless.messages import CallInfo

        return CallInfo(id=name, job="benchmark", step=0, deadline_s=1e6, store=self.store.url)


def measure(callers: Callers, prompts: list[list[int]], rounds: int) -> Measured:
    """Recompute, prefill and load in turn, for one caller of the four: they are alike."""
    recomputed, prefilled, loaded = [], [], []
    for _ in range(rounds):
        callers.clear_store()
        recomputed.append(_timed(lambda: callers.rollout(prompts, load=False)))
        prefilled.append(_timed(lambda: callers.prefill(prompts[:1])))
        callers.prefill(prompts[1:])
        loaded.append(_timed(lambda: callers.rollout(prompts, load=True)))
        assert loaded[-1][1].prefill_loaded == len(prompts) * (len(prompts[0]) - 1)
    found = Measured(len(prompts[0]))
    found.recompute_s, found.recomputed = min(recomputed, key=lambda pair: pair[0])
    found.prefill_s, found.prefilled = min(prefilled, key=lambda pair: pair[0])
    found.load_s, found.loaded = min(loaded, key=lambda pair: pair[0])
    return found


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def fit_costs(cases: Sequence[Measured], token_bytes: int) -> Any:
    """The planner's costs, from the calls' own books by least squares."""
    from prefix_cache.segments import PrefixCosts

    computed = [case.recomputed for case in cases]
    token_s, call_s = _line([(done.prefill_computed, done.prefill_s) for done in computed])
    loaded = [case.loaded for case in cases]
    byte_s, load_s = _line(
        [(d.kv_loaded_bytes / d.kv_loads, d.kv_load_s / d.kv_loads) for d in loaded]
    )
    stored = [case.prefilled for case in cases]
    publish_byte_s, publish_s = _line([(d.published_bytes, d.publish_s) for d in stored])
    request_s = statistics.median(
        case.prefill_s - case.prefilled.prefill_s - case.prefilled.publish_s for case in cases
    )
    return PrefixCosts(
        prefill_token_s=token_s,
        prefill_call_s=call_s,
        load_call_s=load_s,
        load_byte_s=byte_s,
        publish_byte_s=publish_byte_s,
        bytes_per_token=token_bytes,
        publish_call_s=publish_s,
        request_s=max(0.0, request_s),
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept, neither below zero, by relative squared error."""
    import numpy as np

    x, y = np.array(points, dtype=float).T
    rows = np.stack((x, np.ones_like(x)), 1) / y[:, None]
    slope, intercept = np.linalg.lstsq(rows, np.ones_like(y), rcond=None)[0]
    if intercept < 0:
        return float((x / y).sum() / ((x / y) ** 2).sum()), 0.0
    return float(max(0.0, slope)), float(intercept)


def crossover(cases: Sequence[Measured]) -> float:
    """Tokens at which ``in all`` takes as long as recompute, by interpolation; NaN if nowhere."""
    gains = [(case.tokens, case.recompute_s - case.in_all_s) for case in cases]
    for (low, loss), (high, gain) in pairwise(gains):
        if loss < 0 <= gain:
            return low + (high - low) * -loss / (gain - loss)
    return gains[0][0] if gains[0][1] >= 0 else math.nan


def planned(prompts: list[list[int]], costs: Any) -> bool:
    """Whether the planner has the four callers load these prompts."""
    from prefix_cache.plan import plan_prefixes

    everyone = [range(len(prompts))] * CALLERS
    plan = plan_prefixes(prompts, everyone, costs, block_tokens=16, max_bytes=1 << 40)
    return plan.load


def planned_from(costs: Any, longest: int) -> float:
    """The least length from which the planner loads four prompts; infinite beyond ``longest``."""
    for tokens in range(2, longest + 1):
        if planned([[n] * tokens for n in range(CALLERS)], costs):
            return tokens
    return math.inf


def run_model(name: str, folder: Path, vocabulary: int, quick: bool) -> list[Result]:
    import numpy as np

    rng = np.random.default_rng(1)
    lengths = (QUICK if quick else LENGTHS)[name]
    rounds = 20 if name == "quickstart" else 2
    results: list[Result] = []
    cases: list[Measured] = []
    with tempfile.TemporaryDirectory() as store:
        callers = Callers(folder, store)
        callers.rollout(rng.integers(3, vocabulary, (CALLERS, 32)).tolist(), load=False)
        for length in lengths:
            prompts = rng.integers(3, vocabulary, (CALLERS, length)).tolist()
            case = measure(callers, prompts, rounds)
            cases.append(case)
            title = f"{name}: {CALLERS} prompts of {length}"
            pairs = (("load", case.load_s), ("in all", case.in_all_s))
            for kind, seconds in pairs:
                results.append(
                    Result.time(f"{title}, {kind}", 1e3 * seconds, 1e3 * case.recompute_s, "ms")
                )
                print(results[-1], flush=True)
    costs = fit_costs(cases, cases[0].recomputed.kv_token_bytes)
    print(f"{name}: {costs}", flush=True)
    rule, found = planned_from(costs, 4096), crossover(cases)
    case_name = f"{name}: loaded from a length of, cost rule against measured"
    results.append(Result(case_name, rule, found, "tokens", found / rule))
    print(results[-1], flush=True)
    return results


def main(arguments: argparse.Namespace) -> list[Result]:
    import torch
    from transformers.utils import logging

    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    results: list[Result] = []
    for name, path in models.available().items():
        if arguments.models and name not in arguments.models:
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = models.load(path)
            model.save_pretrained(folder)
            vocabulary = model.config.vocab_size
            del model
            results += run_model(name, Path(folder), vocabulary, arguments.quick)
    return results


if __name__ == "__main__":
    parser = common.arguments("Prompts: milliseconds of a caller, loaded beside computed.")
    parser.add_argument("--models", nargs="*", help="quickstart, smollm2; default: what is here")
    options = parser.parse_args()
    found = main(options)
    common.report(found, options.json)
    sys.exit(0 if found else "no model is here: run examples/quickstart/make.py first")
