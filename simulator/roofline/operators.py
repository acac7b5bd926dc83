"""Seconds of one call of one class of kernels, from the bytes it moves and the FLOPs it computes.

``((bytes / (eb BW))^p + (flops / (ef peak))^p)^(1/p) + launch``: a roofline with a soft knee and a
fixed cost, its constants fitted to measured kernels for each accelerator (``simulator.hardware``).
All functions take floats or numpy arrays alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhfless.errors import UserError
from simulator.hardware import Accelerator, Dtype, Efficiency, Link

Array = NDArray[np.float64]
X = TypeVar("X", float, Array)


@dataclass(frozen=True)
class Operator:
    """A class of kernels on one accelerator at one data type."""

    bytes_per_s: float
    flops_per_s: float
    launch_s: float
    exponent: float

    def seconds(self, num_bytes: X, flops: X) -> X:
        """Worked number: reading 218 MB of weights for 8 rows on an A100 (1.63 TB/s, 265 TFLOP/s,
        8 us): 134 us, 7 us, together sqrt(134² + 7²) + 8 = 142 us."""
        p = self.exponent
        moving = num_bytes / self.bytes_per_s
        computing = flops / self.flops_per_s
        both: X = (moving**p + computing**p) ** (1 / p)
        return both + self.launch_s


def operator(accelerator: Accelerator, kind: Efficiency, dtype: Dtype) -> Operator:
    """Raises ``UserError`` where the accelerator does not compute in that data type."""
    peak = accelerator.tflops.get(dtype)
    if peak is None:
        known = ", ".join(accelerator.tflops)
        raise UserError(f"no peak of {dtype} is known for this accelerator; it has {known}")
    return Operator(
        bytes_per_s=kind.memory * accelerator.bytes_per_s,
        flops_per_s=kind.compute * peak * 1e12,
        launch_s=kind.launch_us * 1e-6,
        exponent=kind.exponent,
    )


@dataclass(frozen=True)
class Fabric:
    """How accelerators reach each other: ``per_node`` of them share a node's ``link``."""

    link: Link
    network: Link
    per_node: int

    def gather_s(self, num_bytes: X, ranks: int, stride: int = 1) -> X:
        """Seconds of an all-gather or reduce-scatter whose whole result is ``num_bytes``.

        ``stride``: distance of neighbouring ranks (the tensor-parallel degree between ranks of a
        data-parallel group). A ring in every rank's NIC carries its part (NCCL), so what crosses
        between nodes shares the network links of the group's ranks of a node. Worked number: 16 GB
        over 16 H100 in two nodes, 360 GB/s inside: the network gives 8 · 45 = 360 GB/s as well, so
        15/16 · 16 / 360 = 42 ms.
        """
        if ranks == 1:
            return 0 * num_bytes
        together = min(ranks, max(1, self.per_node // stride))
        bandwidth, latency = self.link.bytes_per_s, self.link.latency_s
        if ranks > together:
            across = together * self.network.bytes_per_s
            bandwidth = min(bandwidth, across) if together > 1 else across
            latency += self.network.latency_s
        return num_bytes * ((ranks - 1) / ranks / bandwidth) + latency

    def all_reduce_s(self, num_bytes: X, ranks: int, stride: int = 1) -> X:
        """A reduce-scatter and an all-gather; one latency."""
        if ranks == 1:
            return 0 * num_bytes
        return self.gather_s(2 * num_bytes, ranks, stride)

    def send_s(self, num_bytes: X, stride: int = 1) -> X:
        """To a rank ``stride`` further on."""
        link = self.link if stride < self.per_node else self.network
        return num_bytes / link.bytes_per_s + link.latency_s
