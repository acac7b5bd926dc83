"""Seconds of the matrix products of a model's forward pass on one tensor-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.errors import UserError
from simulator.hardware import Accelerator
from simulator.model_shape import ModelShape
from simulator.roofline.operators import Fabric, Operator, X, operator


def check_tensor_parallel(shape: ModelShape, degree: int) -> None:
    """Raises ``UserError`` with the nearest degree that divides the model's heads."""
    if degree >= 1 and shape.heads % degree == 0:
        return
    fitting = [each for each in range(1, shape.heads + 1) if shape.heads % each == 0]
    nearest = min(fitting, key=lambda each: abs(each - degree))
    raise UserError(
        f"tensor_parallel {degree} does not divide the {shape.heads} attention heads of "
        f"{shape.name}; {nearest} does",
        param="tensor_parallel",
    )


@dataclass(frozen=True)
class Blocks:
    """The linear layers of ``shape`` split over ``tensor_parallel`` ranks (Megatron's split: two
    all-reduces a block). ``gemm``: the kernels they run on."""

    shape: ModelShape
    gemm: Operator
    tensor_parallel: int
    fabric: Fabric

    def block_s(self, tokens: X) -> X:
        """One block without attention: projections, MLP or mean of the kinds of MLP, all-reduces.

        Experts: the weights of those that some token goes to are read, which with routing at
        random are E (1 - (1 - k/E)^tokens) of E.
        """
        shape, ranks = self.shape, self.tensor_parallel
        q = shape.heads // ranks * shape.head_dim
        kv = max(1, shape.kv_heads // ranks) * shape.head_dim
        seconds = self._product(tokens, shape.hidden, q + 2 * kv)
        seconds = seconds + self._product(tokens, q, shape.hidden)
        experts = shape.experts
        if experts is None:
            seconds = seconds + self._mlp(tokens, shape.intermediate)
        else:
            dense = experts.dense_layers / shape.layers
            mixture = self._product(tokens, shape.hidden, experts.count) + self._experts(tokens)
            if experts.shared_intermediate:
                mixture = mixture + self._mlp(tokens, experts.shared_intermediate)
            if dense:
                mixture = dense * self._mlp(tokens, shape.intermediate) + (1 - dense) * mixture
            seconds = seconds + mixture
        num_bytes = tokens * (shape.hidden * shape.dtype_bytes)
        return seconds + 2 * self.fabric.all_reduce_s(num_bytes, ranks)

    def head_s(self, rows: X) -> X:
        """Logits of ``rows`` positions, gathered from all ranks."""
        vocabulary = self.shape.vocabulary / self.tensor_parallel
        gathered = rows * (self.shape.vocabulary * self.shape.dtype_bytes)
        product = self._product(rows, self.shape.hidden, vocabulary)
        return product + self.fabric.gather_s(gathered, self.tensor_parallel)

    def _mlp(self, tokens: X, intermediate: int) -> X:
        inner = intermediate / self.tensor_parallel
        up = self._product(tokens, self.shape.hidden, (2 if self.shape.gated else 1) * inner)
        return up + self._product(tokens, inner, self.shape.hidden)

    def _experts(self, tokens: X) -> X:
        shape, experts = self.shape, self.shape.experts
        assert experts is not None
        inner = experts.intermediate / self.tensor_parallel
        hit: X = experts.count * (1 - (1 - experts.active / experts.count) ** tokens)
        rows = tokens * experts.active
        wide = (2 if shape.gated else 1) * inner
        up = self._product(rows, shape.hidden, wide, hit)
        return up + self._product(rows, inner, shape.hidden, hit)

    def _product(self, rows: X, inner: float, outer: float, matrices: X | float = 1.0) -> X:
        """[rows, inner] @ [inner, outer], or of ``matrices`` such weights with the rows dealt out
        among them."""
        size = self.shape.dtype_bytes
        moved = size * (matrices * (inner * outer) + rows * (inner + outer))
        return self.gemm.seconds(moved, 2 * rows * (inner * outer))


def make_blocks(
    shape: ModelShape, accelerator: Accelerator, tensor_parallel: int, fabric: Fabric
) -> Blocks:
    check_tensor_parallel(shape, tensor_parallel)
    gemm = operator(accelerator, accelerator.gemm, shape.dtype)
    return Blocks(shape, gemm, tensor_parallel, fabric)
