"""Which training layouts fit into memory, and the nearest one that does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlhfless.errors import UserError
from simulator.hardware import GIB, Accelerator
from simulator.model_shape import ModelShape
from simulator.roofline.operators import Fabric
from simulator.roofline.training import Layout, TrainingCost

UTILISATION = 0.95
"""Share of the memory that training may use; the rest is lost to fragmentation."""
SMALLEST_MICROBATCH = 256


@dataclass(frozen=True)
class TrainingRoom:
    """Up to ``count`` accelerators called ``name`` on which ``shape`` is to be trained."""

    shape: ModelShape
    name: str
    accelerator: Accelerator
    fabric: Fabric
    count: int

    def usable_bytes(self) -> float:
        return UTILISATION * self.accelerator.memory_bytes - self.accelerator.reserved_gib * GIB

    def need_bytes(self, layout: Layout) -> float:
        """Of each accelerator."""
        return TrainingCost(self.shape, self.accelerator, self.fabric, layout).memory().total

    def fits(self, layout: Layout) -> bool:
        within = layout.accelerators <= self.count
        return within and self.need_bytes(layout) <= self.usable_bytes()

    def smallest(self, layout: Layout) -> Layout | None:
        """With the fewest data-parallel ranks; None: no number of them fits."""
        most = self.count // (layout.tensor * layout.pipeline)
        return next(self._fitting(replace(layout, data=n) for n in range(1, most + 1)), None)

    def check(self, layout: Layout, param: str) -> None:
        """Raises ``UserError`` where ``layout`` does not fit, with the nearest that would: more
        data-parallel ranks, then tensor parallelism as well, then smaller microbatches."""
        if self.fits(layout):
            return
        shape, taken = self.shape, layout.accelerators
        where = self.name if taken == 1 else f"{taken} x {self.name}"
        if taken > self.count:
            problem = f"training on {where} does not fit: the pool has {self.count}"
        else:
            problem = (
                f"training {shape.name} on {where} does not fit: each would need "
                f"{self.need_bytes(layout) / GIB:.1f} GiB of the {self.usable_bytes() / GIB:.1f} "
                "that can be used"
            )
        raise UserError(f"{param}: {problem}; {self._what_would(layout)}", param=param)

    def _what_would(self, layout: Layout) -> str:
        wider = self.smallest(layout)
        if wider is not None:
            return f"data_parallel {wider.data} does"
        degrees = [n for n in (1, 2, 4, 8) if self.shape.heads % n == 0 and n <= self._per_node()]
        found = (self.smallest(replace(layout, tensor=n)) for n in degrees)
        split = min((each for each in found if each), key=lambda x: x.accelerators, default=None)
        if split is not None:
            return f"tensor_parallel {split.tensor} with data_parallel {split.data} does"
        tokens = layout.microbatch_tokens // 2
        while tokens >= SMALLEST_MICROBATCH:
            smaller = self.smallest(replace(layout, microbatch_tokens=tokens))
            if smaller is not None:
                return f"microbatches of {tokens} tokens do, with data_parallel {smaller.data}"
            tokens //= 2
        return f"{self.count} of them cannot train it, take a larger pool or a smaller model"

    def _fitting(self, layouts: Iterator[Layout]) -> Iterator[Layout]:
        return (layout for layout in layouts if self.fits(layout))

    def _per_node(self) -> int:
        return self.fabric.per_node
