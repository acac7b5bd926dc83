"""The workers of one training instance, as its numerics see them: sums, flags and a mesh.

Workers run the same code on the same requests (SPMD): each reads the batch itself, computes its
share of every minibatch's samples (``functions.training.division``) and holds its shard of weights,
gradients and optimizer state (``functions.training.shards``). What is here joins their parts. Every
method is a collective: each worker calls it at the same place, and it waits for the others, at most
``COLLECTIVE_S``; a worker that dies ends the wait of all at once. A group of one does nothing.

How workers are started, and who is which: ``functions.ranks``. How followers are told what to do:
``functions.training.leading`` and ``functions.training.following``.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

COLLECTIVE_S = 600.0
"""Longer than workers are ever apart, reading their batch or loading the model for instance; a
worker that hangs for so long is given up with its group."""


class Group:
    """``mesh`` is None for a group of one."""

    def __init__(self, rank: int = 0, size: int = 1, mesh: DeviceMesh | None = None) -> None:
        assert (mesh is None) == (size == 1)
        self.rank = rank
        self.size = size
        self.mesh = mesh

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @classmethod
    def meet(
        cls,
        store: Any,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float = COLLECTIVE_S,
    ) -> Group:
        """The group of ``size`` processes that meet at a store (``new_store``); once a process."""
        backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )
        return cls(rank, size, DeviceMesh(device.type, torch.arange(size)))

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all workers' parts, which are left as they are."""
        if self.size == 1:
            return part
        total = part.clone()
        dist.all_reduce(total)
        return total

    def largest(self, value: float) -> float:
        if self.size == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.item()

    def agree(self, well: bool) -> bool:
        """Whether all are well."""
        return self.largest(0.0 if well else 1.0) == 0.0

    def told(self, number: int) -> int:
        """The leader's number."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.broadcast(found, src=0)
        return int(found)


SOLO = Group()


def new_store(*, here: bool = True) -> Any:
    """Where a group meets, in the leader; its ``port`` is one that was free. ``here``: it is for
    workers of this machine, and nobody else reaches it."""
    if not here:
        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    listener = socket.create_server(("127.0.0.1", 0))
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join_store(host: str, port: int) -> Any:
    return dist.TCPStore(host, port, is_master=False)  # type: ignore[attr-defined]


def stay_here() -> None:
    """Have gloo listen on the loopback, unless somebody chose. Of a group on one machine each
    worker calls it before they meet: what they send each other is nobody's to see or to answer."""
    names = {name for _, name in socket.if_nameindex()}
    for name in {"lo", "lo0"} & names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
