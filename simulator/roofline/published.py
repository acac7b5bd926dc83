"""What others measured, beside what the roofline predicts: ``python -m simulator.roofline``.

Nothing here is fitted to: constants belong to accelerators and classes of kernels
(``simulator/hardware/accelerators.yaml``), and each states what it comes from. Of these figures
``iteration_us`` was taken from the first of ``ENGINE``, and the ``training`` shares are medians of
the table of which ``TRAINING`` shows a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.hardware import GIB, Accelerator, Catalog
from simulator.model_shape import ModelShape, load_shape
from simulator.roofline.inference import InferenceCost, fabric_of
from simulator.roofline.memory import kv_bytes_free
from simulator.roofline.operators import Fabric
from simulator.roofline.training import Layout, Recompute, TrainingCost

Kind = Literal["kernels", "engine", "training", "all-reduce", "KV"]

CONTEXT, BATCHES = 1024, (8, 32, 256)
KERNELS: dict[str, dict[str, tuple[float, float, float]]] = {
    "L40S": {
        "Qwen2.5-3B": (10.0, 10.7, 24.8),
        "Qwen2.5-7B": (20.7, 23.4, 46.7),
        "Llama-3.1-8B": (22.6, 29.8, 75.6),
    },
    "A100-80GB": {
        "Qwen2.5-3B": (6.1, 6.6, 16.0),
        "Qwen2.5-7B": (11.1, 12.1, 27.5),
        "Llama-3.1-8B": (11.7, 14.6, 39.1),
    },
    "H100": {
        "Qwen2.5-3B": (3.3, 3.5, 7.4),
        "Qwen2.5-7B": (5.7, 6.6, 11.8),
        "Llama-3.1-8B": (6.4, 7.8, 18.5),
    },
    "H200": {
        "Qwen2.5-3B": (2.6, 2.8, 5.9),
        "Qwen2.5-7B": (4.4, 4.8, 9.9),
        "Llama-3.1-8B": (4.8, 5.7, 14.8),
    },
    "B200": {
        "Qwen2.5-3B": (1.9, 1.8, 3.5),
        "Qwen2.5-7B": (2.9, 3.0, 5.6),
        "Llama-3.1-8B": (3.1, 3.8, 8.5),
    },
}
"""Milliseconds of the kernels of a decode iteration at context 1,024 and batches of 8, 32 and 256,
summed from the measurements of ai-dynamo/aiconfigurator: products and attention alone."""

VIDUR = ("A100-80GB", "Llama-2-7B", 32, 19.9)
"""Batch and milliseconds at context 1,024: Vidur's profiles (arXiv 2405.05465)."""

ENGINE = (("Llama-3.1-8B", 1, 833.4), ("Llama-3.1-70B", 4, 2077.5), ("Mixtral-8x7B", 2, 1917.4))
"""Tensor-parallel degree and milliseconds for 128 tokens after 32, batch 8, on H200 (vLLM's
performance benchmark, build 9515, 2024)."""

ALL_REDUCE = ((4, 0.5, 10.0), (4, 1.0, 14.0), (4, 1.5, 19.0), (4, 2.0, 21.0), (4, 4.0, 28.0))
"""Ranks, MiB, microseconds of the best all-reduce between H100 (vLLM pull request 24532)."""

KV = ("H100", "Llama-3-8B", 53.29)
"""GiB that vLLM had for keys and values at a utilisation of 0.9 (pull request 10511)."""


@dataclass(frozen=True)
class Run:
    """A training run: tokens a second and accelerator."""

    accelerator: str
    shape: ModelShape
    accelerators: int
    length: int
    sequences: int
    """Sequences of one microbatch of one rank."""
    recompute: Recompute
    tokens_per_s: float
    tensor: int = 1


def _mpt(size: str, layers: int, hidden: int, heads: int) -> ModelShape:
    """MPT as llm-foundry trains it."""
    return ModelShape(
        name=f"MPT-{size}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocabulary=50_368,
        tied=True,
        gated=False,
    )


_3B, _7B = _mpt("3B", 32, 2560, 20), _mpt("7B", 32, 4096, 32)
_13B, _30B, _70B = (
    _mpt("13B", 40, 5120, 40),
    _mpt("30B", 48, 7168, 56),
    _mpt("70B", 80, 8192, 64),
)
_LLAMA = load_shape("Llama-3.1-8B")
TRAINING = (
    Run("A100-80GB", _3B, 8, 2048, 10, "none", 10_811),
    Run("A100-80GB", _7B, 8, 2048, 6, "none", 4_641),
    Run("A100-80GB", _7B, 8, 4096, 16, "full", 3_684),
    Run("A100-80GB", _13B, 8, 2048, 2, "none", 2_262),
    Run("A100-80GB", _30B, 8, 2048, 3, "full", 916),
    Run("A100-80GB", _70B, 64, 2048, 8, "full", 410),
    Run("H100", _3B, 8, 4096, 5, "none", 20_964),
    Run("H100", _7B, 8, 2048, 6, "none", 10_643),
    Run("H100", _7B, 8, 4096, 16, "full", 8_611),
    Run("H100", _13B, 8, 2048, 2, "none", 4_792),
    Run("H100", _13B, 64, 2048, 2, "none", 4_800),
    Run("H100", _30B, 8, 2048, 3, "full", 2_002),
    Run("H100", _70B, 64, 2048, 8, "full", 1_039),
    Run("H100", _LLAMA, 8, 8192, 2, "selective", 6_667),
    Run("H100", _LLAMA, 128, 8192, 2, "selective", 6_514),
)
"""llm-foundry's benchmark table (FSDP), and for Llama torchtitan's of 2024-12 (FSDP with
torch.compile, on H100 of 500 W)."""


@dataclass(frozen=True)
class Comparison:
    """A published figure and the predicted one, in ``unit``."""

    kind: Kind
    what: str
    unit: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative; positive: predicted too much."""
        return self.predicted / self.published - 1


def comparisons(catalog: Catalog) -> Iterator[Comparison]:
    for name, models in KERNELS.items():
        for model, measured in models.items():
            for batch, published in zip(BATCHES, measured, strict=True):
                yield _kernels(catalog, name, model, batch, published)
    yield _kernels(catalog, *VIDUR)
    h200, h100 = catalog.accelerator("H200"), catalog.accelerator("H100")
    for model, degree, published in ENGINE:
        cost = InferenceCost(load_shape(model), h200, fabric_of(catalog, h200), degree)
        prompts = np.full(8, 32.0)
        seconds = cost.prefill_s(prompts) + float(cost.finish_s(prompts + 1, prompts + 95).max())
        what = f"H200 x {degree}, {model}, batch 8, 32 + 128 tokens"
        yield Comparison("engine", what, "ms", published, seconds * 1e3)
    for run in TRAINING:
        yield _training(catalog, run)
    for ranks, mib, published in ALL_REDUCE:
        seconds = fabric_of(catalog, h100).all_reduce_s(mib * 2**20, ranks)
        yield Comparison("all-reduce", f"H100 x {ranks}, {mib} MiB", "us", published, seconds * 1e6)
    name, model, published = KV
    free = kv_bytes_free(load_shape(model), catalog.accelerator(name))
    yield Comparison("KV", f"{name}, {model}, utilisation 0.9", "GiB", published, free / GIB)


def table(catalog: Catalog) -> str:
    """All comparisons, a line each, and the mean and greatest error of each kind."""
    found = list(comparisons(catalog))
    lines = [f"{'':48}{'published':>10}{'predicted':>11}{'error':>9}"]
    for kind in dict.fromkeys(each.kind for each in found):
        of_kind = [each for each in found if each.kind == kind]
        lines.append(f"\n{kind}, {of_kind[0].unit}")
        lines += [
            f"  {each.what:46}{each.published:10,.1f}{each.predicted:11,.1f}{each.error:+9.1%}"
            for each in of_kind
        ]
        sizes = [abs(each.error) for each in of_kind]
        summary = f"mean {np.mean(sizes):.1%}, greatest {max(sizes):.1%}"
        lines.append(f"  {summary:>76}")
    return "\n".join(lines)


def _kernels(catalog: Catalog, name: str, model: str, batch: int, published: float) -> Comparison:
    accelerator = catalog.accelerator(name)
    cost = InferenceCost(
        load_shape(model), accelerator, fabric_of(catalog, accelerator), engine=False
    )
    predicted = cost.decode_s(batch, batch * CONTEXT) * 1e3
    return Comparison("kernels", f"{name}, {model}, batch {batch}", "ms", published, predicted)


def _training(catalog: Catalog, run: Run) -> Comparison:
    accelerator: Accelerator = catalog.accelerator(run.accelerator)
    fabric: Fabric = fabric_of(catalog, accelerator)
    tokens = run.sequences * run.length
    layout = Layout(
        data=run.accelerators // run.tensor,
        tensor=run.tensor,
        microbatch_tokens=tokens,
        recompute=run.recompute,
    )
    cost = TrainingCost(run.shape, accelerator, fabric, layout)
    total = 4 * tokens * layout.data
    seconds = cost.step(total, total * run.length / 2).total_s
    what = (
        f"{run.accelerator} x {run.accelerators}, {run.shape.name}, "
        f"length {run.length}, {run.recompute}"
    )
    predicted = total / seconds / run.accelerators
    return Comparison("training", what, "tokens/s", run.tokens_per_s, predicted)
