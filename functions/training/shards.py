"""Models sharded over the workers of a group (FSDP2), and their tensors one by one.

Each worker holds a slice of every parameter, of its gradient and its optimizer state. A block's
weights are gathered when it computes and freed behind it; its gradients are summed over the workers
(not averaged: a token's weight belongs to the whole minibatch) and scattered to the slices' owners.

A parameter that is not sharded is its own slice, so callers need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from functions.training.group import Group

T = TypeVar("T")
_CALL = "rlhfless_call"


def shard(module: nn.Module, blocks: Iterable[nn.Module], group: Group) -> None:
    """Shard ``module``, each of its ``blocks`` apart, and use it by ``call`` from then on.

    A block is what is gathered at once; what is in none of them (embedding, head) is another one.
    """
    if group.mesh is None:
        return
    parts: list[nn.Module] = [*blocks, module]
    for part in parts:
        fully_shard(part, mesh=group.mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no other
    setattr(module, _CALL, _apply)
    register_fsdp_forward_method(module, _CALL)


def call(module: nn.Module, compute: Callable[..., T], *arguments: Any) -> T:
    """``compute(*arguments)``, which may use all of ``module``; gradients flow from its results.

    A collective, and so is the backward pass: all workers make the same number of both, and every
    parameter that has a gradient on one has one on all.
    """
    if not isinstance(module, FSDPModule):
        return compute(*arguments)
    result: T = getattr(module, _CALL)(compute, *arguments)
    if not torch.is_grad_enabled():
        module.reshard()  # a backward pass would have done it
    return result


def _apply(compute: Callable[..., T], *arguments: Any) -> T:
    return compute(*arguments)


def slice_of(tensor: Tensor) -> Tensor:
    """This worker's part, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def slice_like(tensor: Tensor, whole: Tensor) -> Tensor:
    """The part of ``whole`` that lies in ``whole`` where this worker's of ``tensor`` does."""
    if not isinstance(tensor, DTensor):
        return whole
    if tensor.shape != whole.shape:
        raise ValueError(f"a tensor of {tuple(whole.shape)} is no {tuple(tensor.shape)}")
    placed = distribute_tensor(
        whole.detach(), tensor.device_mesh, tensor.placements, src_data_rank=None
    )
    return placed.to_local()


def put(tensor: Tensor, whole: Tensor) -> None:
    """Take over the values of ``whole``, which every worker has."""
    with torch.no_grad():
        slice_of(tensor).copy_(slice_like(tensor, whole))


def gather(tensor: Tensor) -> Tensor:
    """All of it, on every worker; a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
