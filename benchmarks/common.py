"""What the benchmarks share: arguments, side-by-side timing, the machine's floor, JSON out.

Every benchmark compares ours with a peer in one run, alternating, and reports the ratio of the
medians: a noisy neighbour slows both. ``ratio`` > 1 always means ours is better.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One line of a report; ``case`` begins with the model's name (``quickstart: ...``)."""

    case: str
    ours: float
    peer: float
    unit: str
    ratio: float

    @classmethod
    def rate(cls, case: str, ours: float, peer: float, unit: str) -> Result:
        """More is better, e.g. tokens/s."""
        return cls(case, ours, peer, unit, ours / peer)

    @classmethod
    def time(cls, case: str, ours: float, peer: float, unit: str = "s") -> Result:
        """Less is better."""
        return cls(case, ours, peer, unit, peer / ours)

    def __str__(self) -> str:
        return (
            f"{self.case:<62} ours {self.ours:10.4g}  peer {self.peer:10.4g} {self.unit:<9}"
            f" ratio {self.ratio:5.2f}"
        )


def arguments(description: str, *, threads: bool = True) -> argparse.ArgumentParser:
    """A parser with the flags every benchmark takes; add your own before ``parse_args``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="under two minutes, fewer cases")
    parser.add_argument("--json", metavar="FILE", help="write the results here")
    if threads:
        parser.add_argument("--threads", type=int, default=1, help="torch threads of both sides")
    return parser


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch
    import transformers

    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }


def report(results: list[Result], json_path: str | None, **facts: Any) -> None:
    """Write ``{"machine", "results"}`` to ``json_path`` if given; ``facts`` join the machine's."""
    if json_path is None:
        return
    content = {"machine": {**machine(), **facts}, "results": [asdict(r) for r in results]}
    with open(json_path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def side_by_side(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    rounds: int = 3,
    warmup: int = 1,
) -> tuple[float, float]:
    """Median seconds of both, run in turn (ours, peer, peer, ours, ...) after ``warmup`` rounds."""
    for _ in range(warmup):
        ours()
        peer()
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            seconds[side].append(timed((ours, peer)[side]))
    return statistics.median(seconds[0]), statistics.median(seconds[1])


@dataclass(frozen=True)
class Floor:
    """Rates nothing on this machine can beat, at the present number of threads.

    ``gemm_flops`` by rows of the left matrix: FLOP/s of fp32 ``[rows, k] @ [k, n]`` whose weights
    come from memory, as in decoding; ``bandwidth`` is bytes/s of a read.
    """

    gemm_flops: dict[int, float]
    bandwidth: float

    def linear_s(self, rows: int, parameters: int) -> float:
        """Least seconds of a pass of ``rows`` tokens through fp32 weights (2 FLOP a parameter)."""
        known = max((r for r in self.gemm_flops if r <= rows), default=min(self.gemm_flops))
        best = max(rate for r, rate in self.gemm_flops.items() if r >= known)
        return max(2.0 * rows * parameters / best, 4.0 * parameters / self.bandwidth)


def measure_floor(rows: tuple[int, ...] = (1, 8, 32, 64, 256)) -> Floor:
    """Best of several runs of plain matrix products (cold weights) and of a read of 256 MB."""
    import torch

    generator = torch.Generator().manual_seed(0)
    # 40 matrices of 4 MB are more than any cache keeps: each product reads its weights anew.
    weights = [torch.randn(1024, 1024, generator=generator) for _ in range(40)]
    rates: dict[int, float] = {}
    with torch.inference_mode():
        for count in rows:
            x = torch.randn(count, 1024, generator=generator)
            seconds = _best(lambda x=x: [torch.nn.functional.linear(x, w) for w in weights])  # type: ignore[misc]
            rates[count] = 2.0 * count * 1024 * 1024 * len(weights) / seconds
        block = torch.randn(64 << 20, generator=generator)
        bandwidth = block.numel() * 4 / _best(block.sum)
    return Floor(rates, bandwidth)


def _best(work: Callable[[], object], repeats: int = 5) -> float:
    work()
    return min(timed(work) for _ in range(repeats))


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except FileNotFoundError:  # not Linux
        pass
    return platform.processor() or platform.machine()
