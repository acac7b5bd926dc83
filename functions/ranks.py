"""The workers that make up one function instance: who is which rank, and who starts them.

A group is ``size`` workers of rank 0 to ``size - 1``. Rank 0, the leader, is the instance: it
serves HTTP. The others, the followers, do what it says and end when it does; when one of them ends
first, so does the leader, and whoever runs instances starts another group. All are one program,

    python -m functions.host --function training --workers SIZE ...

and it is started

- once: it forks its followers itself (one node; every platform can);
- once a node (pods of an Indexed Job): ``--nodes M --node-rank R --rendezvous HOST:PORT``. Each
  forks the rest of its node's SIZE / M; the leader is on node 0. Or
- once a rank, by somebody who starts ranks (``torchrun``, workers of Ray Train), with ``RANK``,
  ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` in the environment.

HOST:PORT (or MASTER_ADDR and MASTER_PORT) is where the leader listens for its followers: a port
that is free on its machine. They try to reach it for ``JOIN_S``. torch's backends meet over further
ports, which the system chooses, so the machines of a group must reach each other on any; those of a
group on one machine, whose HOST is 127.0.0.1, are on the loopback (NCCL's excepted). Followers
bear the function's token (``RLHFLESS_FUNCTION_TOKEN``) like any other caller, so all are given the
same one. The leader is ready (``GET /readyz``) once its group is whole. A process exits with 0 when
its group ended in order and with 1 when it broke; a leader that forked all of its group exits with
0 even then, having told its caller.

No thread may run yet when workers are forked. Needs no torch.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlhfless.errors import UserError

JOIN_S = 600.0
"""A group that is not whole by then fails: pods of a gang may need minutes to come up."""
_LOOPBACK = "127.0.0.1"
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """One worker's place in its group. ``host`` and ``port``: where the leader listens.

    ``listener``: the leader's, bound. ``children``: pids of the workers that this process forked.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    host: str = _LOOPBACK
    port: int = 0
    token: str = field(default="", repr=False)
    listener: socket.socket | None = field(default=None, compare=False, repr=False)
    children: tuple[int, ...] = ()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def on_one_machine(self) -> bool:
        return self.host == _LOOPBACK


ALONE = Ranks()


def from_environment(environment: Mapping[str, str], workers: int) -> Ranks | None:
    """The place that somebody who starts ranks has given this process; None: nobody has.

    Raises ``UserError`` where what it was given is incomplete or contradicts ``workers``.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    missing = [name for name in _VARIABLES if name not in environment]
    if missing:
        raise UserError(f"RANK is set but not {', '.join(missing)}")
    try:
        rank, size, local_rank, port = (
            int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
        )
    except ValueError as error:
        raise UserError(f"RANK and its like must be numbers: {error}") from error
    if not 0 <= rank < size or size != workers:
        raise UserError(
            f"this is rank {rank} of {size}, but the instance was to have {workers} workers",
            param="workers",
        )
    return Ranks(rank, size, local_rank, environment["MASTER_ADDR"], port)


def start(
    workers: int,
    *,
    token: str,
    nodes: int = 1,
    node_rank: int = 0,
    rendezvous: str = "",
    environment: Mapping[str, str] = os.environ,
) -> Ranks:
    """The place of this process, having forked what is left of its node's workers; returns in each
    of them. Raises ``UserError`` for numbers that cannot be, or a port that is taken."""
    given = from_environment(environment, workers)
    if given is not None:
        place = replace(given, token=token)
        return replace(place, listener=_listen(place)) if place.leads else place
    if nodes < 1 or not 0 <= node_rank < nodes or workers % nodes:
        raise UserError(
            f"{workers} workers cannot be spread evenly over {nodes} nodes, of which this is "
            f"number {node_rank}",
            param="workers",
        )
    place = Ranks(size=workers, token=token)
    if rendezvous:
        host, _, port = rendezvous.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"the rendezvous {rendezvous!r} is not HOST:PORT")
        place = replace(place, host=host, port=int(port))
    elif nodes > 1:
        raise UserError("workers on several nodes need a rendezvous, HOST:PORT of node 0")
    if node_rank == 0 and workers > 1:
        listener = _listen(place)
        place = replace(place, listener=listener, port=listener.getsockname()[1])
    return _fork(place, node_rank * (workers // nodes), workers // nodes)


def _fork(place: Ranks, first: int, count: int) -> Ranks:
    children = []
    for local_rank in range(1, count):
        pid = os.fork()
        if pid == 0:
            if place.listener is not None:
                place.listener.close()
            return replace(place, rank=first + local_rank, local_rank=local_rank, listener=None)
        children.append(pid)
    return replace(place, rank=first, local_rank=0, children=tuple(children))


def _listen(place: Ranks) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK if place.on_one_machine else "", place.port))
    except OSError as error:
        raise UserError(
            f"cannot listen for workers on port {place.port}: {error.strerror}"
        ) from error
