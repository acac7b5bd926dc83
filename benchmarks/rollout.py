"""Tokens per second of the rollout engine beside ``transformers.generate``.

    python -m benchmarks.rollout [--quick] [--json FILE] [--threads N] [--models NAME ...]
                                 [--match TEXT]

Both sides get the same model, prompts, sampling (temperature 1, whole vocabulary) and lengths, in
turn, in one process. Prompts are shared by groups of 8. ``long tail`` draws response lengths from
an exponential whose mean is an eighth of the longest (generate is told each row's length by a
stopping criterion, as an end-of-sequence token would tell it); ``even`` gives all the same length.
The last case of a model holds its decode step against the machine's floor: the weights' matrix
products at the rate measured here, and one read of the cached keys and values.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, models
from benchmarks.common import Result

GROUP = 8
LONGEST = {"quickstart": 256, "smollm2": 64}
EVEN = {"quickstart": 32, "smollm2": 8}
QUICK = {
    "quickstart": [
        (8, 32, "even"),
        (64, 32, "long tail"),
        (32, 256, "long tail"),
        (64, 512, "even"),
    ],
    "smollm2": [(64, 32, "long tail"), (16, 512, "even")],
}


@dataclass(frozen=True)
class Case:
    """``lengths`` tokens to draw per sample, of prompts of ``prompt`` tokens in groups of 8."""

    name: str
    prompt: int
    lengths: tuple[int, ...]


def cases(model: str, quick: bool) -> Iterator[Case]:
    chosen = [
        (samples, prompt, kind)
        for kind in ("long tail", "even")
        for prompt in (32, 256, 512)
        for samples in (8, 32, 64)
    ]
    if quick:
        chosen = QUICK[model]
    for samples, prompt, kind in chosen:
        longest = LONGEST[model] // (2 if quick and model == "smollm2" else 1)
        lengths = long_tail(samples, longest) if kind == "long tail" else (EVEN[model],) * samples
        yield Case(f"{model}: {samples} samples, prompts of {prompt}, {kind}", prompt, lengths)


def long_tail(samples: int, longest: int) -> tuple[int, ...]:
    """Quantiles of an exponential with mean ``longest / 8``, the last one ``longest``; shuffled."""
    import numpy as np

    quantiles = (np.arange(samples) + 0.5) / samples
    lengths = np.clip(-np.log(1 - quantiles) * longest / 8, 1, longest).astype(int)
    lengths[-1] = longest
    return tuple(np.random.default_rng(0).permutation(lengths).tolist())


class Ours:
    """The rollout engine, called as the rollout function calls it."""

    def __init__(self, folder: Path) -> None:
        import torch

        from functions.rollout.transformers_engine import TransformersEngine

        self._engine = TransformersEngine(torch.device("cpu"))
        self._folder = str(folder)
        self.done: Any = None

    def run(self, prompts: list[list[int]], lengths: Sequence[int]) -> None:
        from functions.context import CallContext
        from rlhfless.messages import (
            CallInfo,
            ModelRef,
            RolloutDone,
            RolloutRequest,
            SampleTask,
            SamplingParams,
        )
        from rlhfless.objects import ObjectStore

        store = ObjectStore("memory://")
        request = RolloutRequest(
            call=CallInfo(id="benchmark", job="benchmark", step=0, deadline_s=1e6, store=""),
            model=ModelRef(path=self._folder, job="benchmark", version=0),
            sampling=SamplingParams(),
            prompts=prompts,
            samples=[
                SampleTask(id=str(n), prompt=n // GROUP, seed=n, max_tokens=length)
                for n, length in enumerate(lengths)
            ],
        )
        self._engine.ensure(request.model, store)
        context = CallContext(store, time.monotonic() + 1e6)
        for frame in self._engine.run(request, context):
            if isinstance(frame, RolloutDone):
                self.done = frame
        assert self.done.generated_tokens == sum(lengths)


class Generate:
    """``transformers.generate`` on a batch of all samples."""

    def __init__(self, folder: Path) -> None:
        self.model = models.load(folder)

    def run(self, prompts: list[list[int]], lengths: Sequence[int]) -> None:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        ends = len(prompts[0]) + torch.tensor(lengths)

        class PerRow(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, input_ids: Any, _scores: Any, **_: Any) -> Any:
                return input_ids.shape[1] >= ends

        rows = torch.tensor([prompts[n // GROUP] for n in range(len(lengths))])
        with torch.inference_mode():
            output = self.model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(lengths),
                stopping_criteria=StoppingCriteriaList([PerRow()]),
            )
        assert output.shape[1] == len(prompts[0]) + max(lengths)


def run_case(case: Case, ours: Ours, peer: Generate, rounds: int) -> Result:
    import numpy as np

    vocabulary = peer.model.config.vocab_size
    rng = np.random.default_rng(1)
    count = (len(case.lengths) + GROUP - 1) // GROUP
    prompts = rng.integers(3, vocabulary, (count, case.prompt)).tolist()
    seconds = common.side_by_side(
        lambda: ours.run(prompts, case.lengths),
        lambda: peer.run(prompts, case.lengths),
        rounds=rounds,
        warmup=0 if rounds == 1 else 1,
    )
    tokens = sum(case.lengths)
    return Result.rate(case.name, tokens / seconds[0], tokens / seconds[1], "tokens/s")


def against_floor(name: str, ours: Ours, peer: Generate, rows: int, steps: int) -> Result:
    """Milliseconds of a decode step at ``rows`` rows, sampling included, and the floor's.

    The best of short runs on both sides: a floor is what nothing can beat.
    """
    import numpy as np

    config = peer.model.config
    prompts = np.random.default_rng(2).integers(3, config.vocab_size, (rows // GROUP, 32)).tolist()
    parameters = sum(p.numel() for p in peer.model.parameters())  # a tied head counts once, and
    # is used once as a matrix: the embedding itself is only looked up
    kv_heads = config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_bytes = 4 * 2 * config.num_hidden_layers * kv_heads * head_dim
    context = 32 + steps / 2
    best, floor_s = float("inf"), float("inf")
    for _ in range(5):
        floor = common.measure_floor((rows,))
        cached = rows * context * kv_bytes / floor.bandwidth
        floor_s = min(floor_s, floor.linear_s(rows, parameters) + cached)
        ours.run(prompts, [steps] * rows)
        best = min(best, ours.done.decode_s / ours.done.iterations)
    case = f"{name}: decode step of {rows} rows, against the machine's floor"
    return Result.time(case, 1e3 * best, 1e3 * floor_s, "ms")


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
            peer = Generate(path)
            peer.model.save_pretrained(folder)
            ours = Ours(Path(folder))
            for case in cases(name, arguments.quick):
                if arguments.match not in case.name:
                    continue
                rounds = 3 if name == "quickstart" else 1
                results.append(run_case(case, ours, peer, rounds))
                print(results[-1], flush=True)
            results.append(against_floor(name, ours, peer, 64, 8))
            print(results[-1], flush=True)
    return results


if __name__ == "__main__":
    parser = common.arguments("Rollout: tokens/s beside transformers.generate.")
    parser.add_argument("--models", nargs="*", help="quickstart, smollm2; default: what is here")
    parser.add_argument("--match", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    found = main(options)
    common.report(found, options.json)
    sys.exit(0 if found else "no model is here: run examples/quickstart/make.py first")
