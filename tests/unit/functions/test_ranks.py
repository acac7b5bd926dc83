"""Who is which worker: forked here, one process a node, or one process a rank."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from functions.ranks import Ranks, from_environment, start
from rlhfless.errors import UserError

GIVEN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "train-0",
    "MASTER_PORT": "29500",
}


def places(**terms: Any) -> list[Ranks]:
    """What ``start`` returns in each process that it returns in: its own first."""
    reading, writing = os.pipe()
    pid = os.fork()  # so that what it forks is not forked off pytest twice over
    if pid == 0:
        made = start(token="t", environment={}, **terms)
        line = json.dumps([made.rank, made.size, made.local_rank, made.host, made.port])
        os.write(writing, f"{line} {int(made.listener is not None)}\n".encode())
        for child in made.children:
            os.waitpid(child, 0)
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as file:
        lines = [line.rpartition(" ") for line in file]
    found = [(Ranks(*json.loads(place)), listens.strip() == "1") for place, _, listens in lines]
    assert all(listens == place.leads for place, listens in found)
    return sorted((place for place, _ in found), key=lambda place: place.rank)


def test_one_process_forks_the_others() -> None:
    found = places(workers=3)
    assert [(place.rank, place.local_rank, place.size) for place in found] == [
        (0, 0, 3),
        (1, 1, 3),
        (2, 2, 3),
    ]
    assert len({(place.host, place.port) for place in found}) == 1
    assert found[0].port > 0


def test_each_node_forks_its_own() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
    terms: dict[str, Any] = {"workers": 4, "nodes": 2, "rendezvous": f"node-0:{port}"}
    found = places(**terms, node_rank=0)
    assert [(place.rank, place.local_rank) for place in found] == [(0, 0), (1, 1)]
    found = places(**terms, node_rank=1)
    assert [(place.rank, place.local_rank) for place in found] == [(2, 0), (3, 1)]
    assert {(place.host, place.port) for place in found} == {("node-0", port)}


def test_a_rank_that_somebody_started_is_taken_as_it_is() -> None:
    place = start(4, token="t", environment=GIVEN)
    assert place == Ranks(3, 4, 1, "train-0", 29500, "t")
    assert place.children == () and not place.leads
    assert from_environment({}, 4) is None


@pytest.mark.parametrize(
    ("workers", "changes", "words"),
    [
        (8, {}, "rank 3 of 4, but the instance was to have 8"),
        (4, {"RANK": "4"}, "rank 4 of 4"),
        (4, {"LOCAL_RANK": "x"}, "must be numbers"),
        (4, {"MASTER_ADDR": None}, "not MASTER_ADDR"),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    workers: int, changes: dict[str, str | None], words: str
) -> None:
    environment = {n: v for n, v in (GIVEN | changes).items() if v is not None}
    with pytest.raises(UserError, match=words):
        start(workers, token="t", environment=environment)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"nodes": 2, "workers": 3, "rendezvous": "a:1"}, "spread evenly over 2 nodes"),
        ({"nodes": 2, "workers": 4, "node_rank": 2, "rendezvous": "a:1"}, "number 2"),
        ({"nodes": 2, "workers": 4}, "need a rendezvous"),
        ({"nodes": 2, "workers": 4, "rendezvous": "a"}, "not HOST:PORT"),
    ],
)
def test_nodes_that_cannot_be_are_refused(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        start(token="t", environment={}, **terms)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("", 0)) as taken:
        environment = GIVEN | {"RANK": "0", "MASTER_PORT": str(taken.getsockname()[1])}
        with pytest.raises(UserError, match="cannot listen for workers"):
            start(4, token="t", environment=environment)
