"""A follower: carries out its leader's orders until it is told to go, or its leader is gone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

import torch

from functions.execution import as_error
from functions.ranks import JOIN_S, Ranks
from functions.training import links
from functions.training.group import COLLECTIVE_S, Group, join_store, stay_here
from functions.training.orders import Going, Leave, Meet, Order, Report, send
from functions.training.worker import Apart, Worker, in_step
from rlhfless.errors import InternalError, TransientError

_log = logging.getLogger(__name__)


def follow(
    ranks: Ranks,
    device: torch.device,
    join_s: float = JOIN_S,
    collective_s: float = COLLECTIVE_S,
) -> None:
    """Returns when the leader says that all is well and over. Raises ``TransientError`` where there
    is no leader, or the group broke; leaves the process at once when the leader is gone."""
    connection = links.follow(ranks, join_s)
    _pass_on_sigterm(connection)
    orders = links.orders(connection, _leader_is_gone)
    meet = next(orders)
    if not isinstance(meet, Meet):
        raise InternalError(f"the leader began with {type(meet).__name__}")
    if ranks.on_one_machine:
        stay_here()
    store = join_store(ranks.host, meet.port)
    worker = Worker(device, Group.meet(store, ranks.rank, ranks.size, device, collective_s))
    for order in orders:
        match order:
            case Leave(well):
                if well:
                    return
                raise TransientError("the group of workers broke")
            case Meet():
                raise InternalError("the leader wants to meet twice")
            case _:
                send(connection, Report(_carry_out(worker, order)))


def _carry_out(worker: Worker, order: Order) -> dict[str, Any] | None:
    try:
        work = worker.prepare(order)
        if work is not None:
            in_step(worker.group, work)
    except Apart:
        return None
    except BaseException as error:  # the boundary of an order: its leader hears of it
        worker.learner = None
        failure = as_error(error)
        if failure.category == "internal":
            _log.exception("an order failed: %s", type(order).__name__)
        return failure.to_problem()
    return None


def _pass_on_sigterm(connection: socket.socket) -> None:
    """Whoever wants this process to end must end the group in order. The main thread, in which
    Python handles signals, may be in a collective for long; bytes come through at once."""
    wake_in, wake_out = socket.socketpair()
    wake_out.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake_out.detach())

    def wait() -> None:
        wake_in.recv(1)
        send(connection, Going())

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def _leader_is_gone() -> NoReturn:
    _log.error("the leader is gone")
    logging.shutdown()
    sys.stderr.flush()
    os._exit(1)
