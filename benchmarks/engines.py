"""The two rollout engines side by side: transformers (ours) and vLLM (the peer).

    python -m benchmarks.engines [--quick] [--json FILE] [--threads N] [--models NAME ...]

Needs vLLM (``make test-vllm`` installs its CPU build into ``.venv-vllm``). Both engines are called
as the rollout function calls them, in turn, with the same model, prompts, sampling (temperature 1,
whole vocabulary) and lengths; vLLM runs eagerly, in a process of its own. Lines:

- tokens/s of groups of 8;
- a prompt of 1000 tokens for a group of 8: seconds to the last sample's first token;
- seconds in which a full weight version is served;
- facts: prompt tokens that were run for that group by each engine, and by two vLLM instances in two
  processes with and without the stored prefix; how far an engine's log-probs are from the trainer's
  model (mismatch), and from its own in batches of another size (batch invariance).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common, models
from benchmarks.common import Result

GROUP = 8
PROMPT = 1000
LENGTHS = {"quickstart": 64, "smollm2": 16}
JOB = "benchmark"


@dataclass(frozen=True)
class Case:
    samples: int
    prompt: int
    tokens: int


def cases(model: str, quick: bool) -> list[Case]:
    sizes = [(8, 32), (32, 32)] if quick else [(8, 32), (32, 32), (64, 32), (8, 512), (32, 512)]
    return [Case(samples, prompt, LENGTHS[model]) for samples, prompt in sizes]


class Side:
    """One engine, called as the rollout function calls it."""

    def __init__(self, name: str, folder: Path, store: str, threads: int) -> None:
        from rlhfless.objects import ObjectStore

        self._folder = str(folder)
        self._store = ObjectStore(store)
        self._version = 0
        if name == "transformers":
            import torch

            from functions.rollout.transformers_engine import TransformersEngine
            from prefix_cache.store import KvStore

            self.engine: Any = TransformersEngine(torch.device("cpu"), KvStore(memory_bytes=0))
        else:
            from functions.rollout.vllm_engine.environment import prepare_environment

            prepare_environment("cpu", threads)
            from functions.rollout.vllm_engine.engine import VllmEngine
            from rlhfless.engines import EngineOptions

            self.engine = VllmEngine(EngineOptions(name="vllm", kv_cache_bytes=1 << 30), "cpu")
        self.serve(0)

    def serve(self, version: int) -> None:
        from rlhfless.messages import ModelRef

        self._model = ModelRef(path=self._folder, job=JOB, version=version)
        self.engine.ensure(self._model, self._store)

    def generate(
        self, prompts: list[list[int]], samples: int, tokens: int, *, load: bool | None = None
    ) -> tuple[Any, dict[int, list[int]], dict[int, list[float]]]:
        """The books, and tokens and log-probs by sample. ``load``: whether stored prefixes are
        looked for; None: keys and values stay in the call."""
        import numpy as np

        from rlhfless.messages import PrefixUse, RolloutDone, RolloutRequest, SampleTask, Tokens
        from rlhfless.messages import SamplingParams as Sampling

        use = None
        if load is not None:
            use = PrefixUse(cuts=[[len(p) - 1] for p in prompts], load=load, publish=False)
        request = RolloutRequest(
            call=self._call("rollout"),
            model=self._model,
            sampling=Sampling(),
            prompts=prompts,
            samples=[
                SampleTask(id=str(n), prompt=n // GROUP % len(prompts), seed=n, max_tokens=tokens)
                for n in range(samples)
            ],
            prefix=use,
        )
        found: dict[int, list[int]] = {n: [] for n in range(samples)}
        logprobs: dict[int, list[float]] = {n: [] for n in range(samples)}
        done: Any = None
        self.engine.ensure(self._model, self._store)
        for frame in self.engine.run(request, self._context()):
            if isinstance(frame, Tokens):
                values, at = np.frombuffer(frame.logprobs, dtype="<f4").tolist(), 0
                for sample, count in zip(frame.samples, frame.counts, strict=True):
                    found[sample] += frame.tokens[at : at + count]
                    logprobs[sample] += values[at : at + count]
                    at += count
            elif isinstance(frame, RolloutDone):
                done = frame
        assert done is not None and done.generated_tokens == samples * tokens
        return done, found, logprobs

    def prefill(self, prompts: list[list[int]]) -> int:
        """Store the prompts' keys and values; the tokens that were run for it."""
        from rlhfless.messages import PrefillRequest

        request = PrefillRequest(
            call=self._call("prefill"),
            model=self._model,
            prompts=prompts,
            cuts=[[len(p) - 1] for p in prompts],
        )
        self.engine.ensure(self._model, self._store)
        computed: int = self.engine.prefill(request, self._context()).tokens_computed
        return computed

    def _call(self, name: str) -> Any:
        from rlhfless.messages import CallInfo

        return CallInfo(id=name, job=JOB, step=0, deadline_s=1e6, store=self._store.url)

    def _context(self) -> Any:
        from functions.context import CallContext

        return CallContext(self._store, time.monotonic() + 1e6)


def measure(name: str, folder: Path, store: str, args: argparse.Namespace) -> list[Result]:
    import torch

    torch.set_num_threads(args.threads)
    vocabulary = _vocabulary(folder)
    ours = Side("transformers", folder, store, args.threads)
    peer = Side("vllm", folder, store, args.threads)
    results: list[Result] = []

    def add(result: Result) -> None:
        results.append(result)
        print(result, flush=True)

    rounds = 1 if args.quick else 3
    try:
        for case in cases(name, args.quick):
            prompts = _prompts(case.samples // GROUP, case.prompt, vocabulary)
            one, other = common.side_by_side(
                lambda c=case, p=prompts: ours.generate(p, c.samples, c.tokens),  # type: ignore[misc]
                lambda c=case, p=prompts: peer.generate(p, c.samples, c.tokens),  # type: ignore[misc]
                rounds=rounds,
            )
            total = case.samples * case.tokens
            what = f"{name}: {case.samples} samples x {case.tokens}, prompts of {case.prompt}"
            add(Result.rate(what, total / one, total / other, "tokens/s"))
        add(shared_prompt(name, ours, peer, vocabulary, rounds))
        add(updates(name, ours, peer, folder, store, rounds))
        for side, label in ((ours, "transformers"), (peer, "vllm")):
            facts(name, label, side, folder, vocabulary)
    finally:
        ours.engine.close()
        peer.engine.close()
    return results


def shared_prompt(name: str, ours: Side, peer: Side, vocabulary: int, rounds: int) -> Result:
    """Each round has a prompt of its own, or vLLM would remember it."""
    seeds = iter(range(1000))

    def run(side: Side) -> Any:
        return side.generate(_prompts(1, PROMPT, vocabulary, next(seeds)), GROUP, 1)[0]

    one, other = common.side_by_side(lambda: run(ours), lambda: run(peer), rounds=rounds)
    for label, side in (("transformers", ours), ("vllm", peer)):
        done = run(side)
        print(
            f"  {name}: {label}: {done.prefill_computed} of {GROUP * PROMPT} prompt tokens run, "
            f"{done.prefill_saved} spared"
        )
    return Result.time(f"{name}: a prompt of {PROMPT} for {GROUP} samples", one, other)


def updates(name: str, ours: Side, peer: Side, folder: Path, store: str, rounds: int) -> Result:
    """Back and forth between two full versions; each of them is pulled."""
    from functions.weights.tensors import publish
    from rlhfless.objects import ObjectStore

    model = models.load(folder)
    objects = ObjectStore(store)
    for version in (1, 2):
        tensors = {n: (1 + 1e-3 * version) * p.detach() for n, p in model.named_parameters()}
        call = f"train-{version}"
        publish(objects, JOB, version - 1, tensors, kind="full", call_id=call)

    def there_and_back(side: Side) -> None:
        side.serve(1)
        side.serve(2)

    one, other = common.side_by_side(
        lambda: there_and_back(ours), lambda: there_and_back(peer), rounds=rounds
    )
    ours.serve(0)
    peer.serve(0)
    return Result.time(f"{name}: a full weight update", one / 2, other / 2)


def facts(name: str, label: str, side: Side, folder: Path, vocabulary: int) -> None:
    """What is no race: mismatch with the trainer's model, and dependence on the batch's size."""
    import torch

    model = models.load(folder)
    prompts = _prompts(4, 64, vocabulary)
    _, tokens, logprobs = side.generate(prompts, 4 * GROUP, 32)
    worst = total = 0.0
    with torch.inference_mode():
        for sample, drawn in tokens.items():
            prompt = prompts[sample // GROUP]
            logits = model(torch.tensor([prompt + drawn])).logits[0, len(prompt) - 1 : -1]
            want = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(drawn)[:, None])
            gap = (want[:, 0] - torch.tensor(logprobs[sample])).abs()
            worst, total = max(worst, gap.max().item()), total + gap.mean().item()
    print(
        f"  {name}: {label}: log-probs differ from the trainer's by {total / len(tokens):.1e} "
        f"(worst {worst:.1e})"
    )
    equal, gap_of_one = 0, 0.0
    for sample in range(0, 4 * GROUP, GROUP):
        _, alone, alone_logprobs = side.generate([prompts[sample // GROUP]], 1, 32)
        # Seeds go by the sample's number: only the first of each call has that of its first group.
        if sample == 0:
            equal = int(alone[0] == tokens[0])
            gaps = zip(alone_logprobs[0], logprobs[0], strict=True)
            gap_of_one = max(abs(a - b) for a, b in gaps) if equal else float("nan")
    print(
        f"  {name}: {label}: a sample alone and among {4 * GROUP}: "
        f"{'the same' if equal else 'other'} tokens, log-probs differ by {gap_of_one:.1e} at most"
    )


def pair(name: str, folder: Path, store: str, threads: int) -> None:
    """A group of 8 on two vLLM instances in two processes: how often its prompt is run."""
    prompts = _prompts(1, PROMPT, _vocabulary(folder), seed=77)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_instance, args=(there, str(folder), store, threads))
        process.start()
        pipes.append(here)
        processes.append(process)
    try:
        for pipe in pipes:
            assert pipe.recv() == "ready"
        apart = sum(_asked(pipes, ("rollout", prompts, False)))
        other = _prompts(1, PROMPT, _vocabulary(folder), seed=78)
        stored = _asked(pipes[:1], ("prefill", other, True))[0]
        loaded = sum(_asked(pipes, ("rollout", other, True)))
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    print(
        f"  {name}: vllm, {GROUP} samples on two instances: {apart} prompt tokens run; with the "
        f"prompt stored first {stored} + {loaded}"
    )


def _asked(pipes: Sequence[Any], question: Any) -> list[int]:
    for pipe in pipes:
        pipe.send(question)
    return [pipe.recv() for pipe in pipes]


def _instance(pipe: Any, folder: str, store: str, threads: int) -> None:
    side = Side("vllm", Path(folder), store, threads)
    pipe.send("ready")
    while (question := pipe.recv()) is not None:
        what, prompts, load = question
        if what == "prefill":
            pipe.send(side.prefill(prompts))
        else:
            pipe.send(side.generate(prompts, GROUP // 2, 1, load=load)[0].prefill_computed)
    side.engine.close()


def _prompts(count: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(seed)
    return [rng.integers(4, vocabulary, length).tolist() for _ in range(count)]


def _vocabulary(folder: Path) -> int:
    size: int = json.loads((folder / "config.json").read_text())["vocab_size"]
    return size


def _with_context(source: Path, target: Path) -> Path:
    """The model's folder with room for long prompts."""
    shutil.copytree(source, target)
    path = target / "config.json"
    config = json.loads(path.read_text())
    config["max_position_embeddings"] = max(models.CONTEXT, config["max_position_embeddings"])
    path.write_text(json.dumps(config))
    return target


def main() -> int:
    parser = common.arguments(str(__doc__).splitlines()[0])
    known = models.available()
    parser.add_argument("--models", nargs="+", choices=known, default=list(known))
    args = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here; make test-vllm installs it into .venv-vllm")
        return 1
    results: list[Result] = []
    for name in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            folder = _with_context(known[name], Path(scratch) / "model")
            results += measure(name, folder, str(Path(scratch) / "store"), args)
            pair(name, folder, str(Path(scratch) / "pairs"), args.threads)
    common.report(results, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
