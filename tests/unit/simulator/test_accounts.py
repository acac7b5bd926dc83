"""From simulated time to the whole job's seconds and dollars."""

from __future__ import annotations

import dataclasses

import pytest

from controller.ledger import Ledger
from simulator.accounts import Accounts, Segment
from simulator.cluster import make_cluster
from simulator.platform.capacity import Capacity, Grant, make_nodes
from simulator.platform.lives import Holding


def grant(count: int, price: float | None = 3.6) -> Grant:
    pool = {"accelerator": "H100", "per_node": 8, "price_usd_per_hour": price,
            "spot_price_usd_per_hour": 1.8}  # fmt: skip
    pools = make_cluster({"pools": {"gpus": pool}}).pools
    taken = Capacity(make_nodes(pools.values())).take(pools["gpus"], count, spot=False)
    assert taken is not None
    return taken


def test_steps_count_as_often_as_what_they_stand_for() -> None:
    ledger = Ledger()
    ledger.started("rollout-1", "rollout", 0.0)
    ledger.phase("rollout-1", "idle", 10.0)  # ready
    ledger.phase("rollout-1", "busy", 20.0)
    ledger.phase("rollout-1", "idle", 50.0)
    holdings = {"rollout-1": [Holding(0.0, grant(2))]}
    segments = [Segment(0.0, 20.0, 1.0), Segment(20.0, 60.0, 5.0), Segment(60.0, 70.0, 1.0)]
    accounts = Accounts(ledger, holdings, segments, 70.0)
    assert accounts.seconds == 20 + 5 * 40 + 10
    use = accounts.usage()["rollout"]
    assert use.accelerators == 2
    assert use.cold_s == 2 * 10
    assert use.busy_s == 2 * 5 * 30
    assert use.idle_s == 2 * (10 + 5 * 10 + 10)
    assert use.usd == pytest.approx(use.held_s * 3.6 / 3600)
    assert use.usd_spot == pytest.approx(use.usd / 2)


def test_an_instance_that_woke_up_elsewhere_is_counted_as_what_it_then_held() -> None:
    ledger = Ledger()
    ledger.started("training-1", "training", 0.0)
    ledger.stopped("training-1", 10.0)
    ledger.started("training-1", "training", 30.0)
    holdings = {"training-1": [Holding(0.0, grant(8)), Holding(30.0, grant(4))]}
    accounts = Accounts(ledger, holdings, [Segment(0.0, 40.0, 1.0)], 40.0)
    assert accounts.usage()["training"].held_s == 8 * 10 + 4 * 10
    assert [span.accelerators for span in accounts.spans(0.0, 40.0)] == [8, 4]


def test_a_function_on_the_hosts_processors_costs_nothing_beside_its_accelerators() -> None:
    ledger = Ledger()
    ledger.started("reward-1", "reward", 0.0)
    accounts = Accounts(ledger, {"reward-1": [Holding(0.0, None)]}, [Segment(0.0, 9.0, 1.0)], 9.0)
    use = accounts.usage()["reward"]
    assert (use.accelerators, use.cold_s, use.usd) == (0, 9.0, 0.0)


def test_spans_are_cut_to_the_window() -> None:
    ledger = Ledger()
    ledger.started("rollout-1", "rollout", 0.0)
    ledger.phase("rollout-1", "busy", 4.0)
    accounts = Accounts(
        ledger, {"rollout-1": [Holding(0.0, grant(1))]}, [Segment(0.0, 9.0, 1.0)], 9.0
    )
    spans = accounts.spans(2.0, 6.0)
    assert [(s.phase, s.start_s, s.end_s) for s in spans] == [
        ("cold", 2.0, 4.0),
        ("busy", 4.0, 6.0),
    ]


def test_what_the_hosts_processors_cost_is_unknown_beside_accelerators_without_a_price() -> None:
    ledger = Ledger()
    ledger.started("reward-1", "reward", 0.0)
    ledger.started("rollout-1", "rollout", 0.0)
    priced = grant(1)
    [(node, count)] = priced.parts
    pool = dataclasses.replace(node.pool, on_demand_usd_per_hour=None)
    parts = ((dataclasses.replace(node, pool=pool), count),)
    free = dataclasses.replace(priced, parts=parts)
    holdings = {"reward-1": [Holding(0.0, None)], "rollout-1": [Holding(0.0, free)]}
    uses = Accounts(ledger, holdings, [Segment(0.0, 9.0, 1.0)], 9.0).usage()
    for use in uses.values():
        assert (use.usd, use.usd_on_demand) == (None, None)
    assert uses["reward"].usd_spot == 0.0
