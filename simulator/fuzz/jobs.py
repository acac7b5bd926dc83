"""Small jobs of every kind, made by chance, and the clusters they run on."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from controller.dataset import Row
from controller.job import Prompt
from rlhfless.measurements import Measurements
from rlhfless.spec import GROUP_WISE, JobSpec
from simulator.cluster import Cluster, make_cluster
from simulator.cluster_file import VariationSpec
from simulator.model_shape import ModelShape
from simulator.random_numbers import hashed, uniform
from simulator.workload import Lengths, PromptKeys

SWITCHES = (
    "dedup_prefill", "prefix_cache", "predict_lengths", "scale_actors", "early_release", "migrate",
    "stream_scoring",
)  # fmt: skip
SHAPE = ModelShape(
    name="tiny",
    layers=1,
    hidden=64,
    heads=1,
    kv_heads=1,
    head_dim=64,
    intermediate=128,
    vocabulary=1000,
    tied=True,
    dtype="float32",
)

Sharing = Literal["time_shared", "exclusive", "unlimited"]


@dataclass(frozen=True)
class FuzzLengths:
    """Long-tailed lengths of at least ``least``, a function of seed, prompt, step and sample;
    epochs change nothing."""

    seed: int
    most: int
    least: int

    def lengths(self, prompts: PromptKeys, group: int, step: int, epoch: int) -> Lengths:  # noqa: ARG002
        samples = np.arange(group, dtype=np.uint64)[None, :]
        drawn = uniform(hashed(self.seed, prompts[:, None], step, samples), 0)
        found: Lengths = np.minimum((self.least / drawn).astype(np.int64), self.most)
        return found


def make_spec(rng: random.Random, max_tokens: int, deadline_s: float) -> JobSpec:
    name = rng.choice(("grpo", "dr_grpo", "rloo", "reinforce_pp", "ppo"))
    compares = name in GROUP_WISE
    group = rng.randint(2 if compares else 1, 4)
    prompts = rng.randint(1, 4)
    divisors = [n for n in (1, 2, 3, 4) if prompts * group % n == 0]
    priced = rng.random() < 0.5
    raw: dict[str, Any] = {
        "name": "job",
        "seed": rng.getrandbits(20),
        "model": {"path": "tiny"},
        "dataset": {"path": "train.jsonl", "shuffle": rng.random() < 0.7},
        "rewards": _rewards(rng),
        "algorithm": {
            "name": name,
            "group_size": group,
            "kl": {
                "coefficient": rng.choice((0.0, 0.1)),
                "placement": rng.choice(("loss", "reward")),
            },
        },
        "rollout": {
            "max_tokens": max_tokens,
            "max_instances": rng.randint(1, 6),
            "max_batch": rng.choice((0, 0, 1, 3)),
            "call_timeout_s": deadline_s,
            **_function(rng, priced),
        },
        "reward": {"max_instances": rng.randint(1, 3), **_function(rng, priced)},
        "reference": {"max_instances": rng.randint(1, 2), **_function(rng, priced)},
        "training": {
            "prompts_per_step": prompts,
            "steps": None if prompts > 2 and rng.random() < 0.2 else rng.randint(1, 4),
            "minibatches": rng.choice(divisors),
            "checkpoint_every": rng.randint(1, 4),
            "keep_versions": rng.randint(1, 3),
            "overlap": rng.random() < 0.5,
            **_function(rng, priced),
        },
        "scheduling": _scheduling(rng),
        "objective": {
            "time_weight": rng.choice((0.0, 0.5, 1.0)),
            "max_slowdown": rng.choice((None, 1.0, 2.0)),
        },
    }
    if rng.random() < 0.6:
        raw["evaluation"] = {
            "dataset": {"path": "eval.jsonl"},
            "every": rng.randint(0, 2),
            "samples_per_prompt": rng.randint(1, 2),
            "threshold": 0.5,
        }
    if rng.random() < 0.3:
        limit = "max_usd" if priced else "max_function_seconds"
        most = log_uniform(rng, 3, 300) * (1 / 3600 if priced else 1)
        raw["budget"] = {limit: most, "on_exceed": rng.choice(("pause", "pause", "fail"))}
    return _valid(raw)


def change_spec(spec: JobSpec, rng: random.Random) -> JobSpec:
    """The job as it may be resumed: other limits and switches, the same result."""
    raw: dict[str, Any] = spec.model_dump(exclude={"budget", "evaluation"})
    priced = spec.rollout.price_usd_per_hour is not None
    for name in ("rollout", "reward", "reference", "training"):
        raw[name] |= _function(rng, priced)
    raw["rollout"] |= {"max_instances": rng.randint(1, 6), "max_batch": rng.choice((0, 1, 3))}
    raw["training"] |= {
        "checkpoint_every": rng.randint(1, 4),
        "keep_versions": rng.randint(1, 3),
        "overlap": rng.random() < 0.5,
    }
    raw["scheduling"] = _scheduling(rng)
    return _valid(raw).model_copy(update={"budget": spec.budget, "evaluation": spec.evaluation})


def _valid(raw: dict[str, Any]) -> JobSpec:
    try:
        return JobSpec.model_validate(raw)
    except ValidationError:  # an overlap in which nothing would be computed
        raw["training"]["overlap"] = False
        return JobSpec.model_validate(raw)


def _function(rng: random.Random, priced: bool) -> dict[str, Any]:
    return {
        "idle_timeout_s": rng.choice((0.0, 0.3, 60.0, 60.0)),
        "price_usd_per_hour": rng.choice((0.5, 3.0)) if priced else None,
    }


def _rewards(rng: random.Random) -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [
        {"python": "rewards.py:odd"},
        {"python": "rewards.py:short", "weight": 0.5},
        {"http": "http://judge/score", "weight": -0.25},
    ]
    return kinds[: rng.randint(1, 3)]


def _scheduling(rng: random.Random) -> dict[str, Any]:
    strategy = rng.choice(("rlhfless", "rlhfless", "static", "custom", "custom"))
    raw: dict[str, Any] = {
        "strategy": strategy,
        "block_tokens": rng.choice((1, 4, 16)),
        "kv_store_mb": rng.choice((1, 4096)),
    }
    if strategy == "custom":
        raw |= {switch: rng.random() < 0.6 for switch in SWITCHES}
        kinds = ("random", "balanced", "sorted", "group_affine", "auto")
        raw["assignment"] = rng.choice(kinds)
    return raw


def make_prompts(rng: random.Random, param: str, count: int) -> tuple[Prompt, ...]:
    """Some begin alike, some are the same."""
    shared = [rng.randrange(1000) for _ in range(rng.choice((0, 8, 40)))]
    found: list[Prompt] = []
    for index in range(count):
        if found and rng.random() < 0.1:
            row, tokens = found[0].row, found[0].tokens
        else:
            own = [rng.randrange(1000) for _ in range(rng.randint(1, 30))]
            text = f"{param} {index}"
            row, tokens = Row(text, {"answer": index}, text), tuple(shared + own)
        found.append(Prompt(f"{param}/{index}", row, tokens))
    return tuple(found)


def make_measurements(rng: random.Random, iteration_s: float) -> Measurements:
    start_s = log_uniform(rng, 0.05, 5)
    stores = rng.random() < 0.6
    return Measurements.model_validate(
        {
            "rollout": {
                "decode": [iteration_s, iteration_s / rng.choice((5, 100)), iteration_s / 1e5],
                "prefill": [iteration_s, iteration_s * rng.choice((0.001, 0.02))],
                "weights_pull": [rng.choice((0.0, 0.05)), 0.0],
                "kv_load": [0.001, 1e-9],
                "kv_publish": [0.001, 1e-9],
                "max_batch": rng.choice((2, 8, 256)),
                "kv_capacity_tokens": rng.choice((150, 600, 100_000)),
                **({"kv_token_bytes": 1000} if stores else {}),
            },
            "training": {
                "update": [log_uniform(rng, 0.01, 3), 1e-4],
                "gradients": [0.01, 1e-4],
                "publish_s": 0.01,
                "weights_bytes": 1000,
            },
            "reward": [log_uniform(rng, 0.001, 0.5), 1e-3],
            "reference": [log_uniform(rng, 0.001, 0.5), 1e-4],
            "cold_start_s": dict.fromkeys(("rollout", "reward", "reference", "training"), start_s),
            "load_s": {"rollout": rng.choice((0.0, 0.2))},
        }
    )


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# --- clusters -------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def make_fuzz_cluster(
    nodes: int, sharing: Sharing, spot: float, straggler: tuple[float, float]
) -> Cluster:
    """Nodes of one accelerator. ``spot``: preemptions an hour of each node that is; ``straggler``:
    share and factor."""
    base = _cluster(spot)
    share, factor = straggler
    pool = base.pools["gpus"]
    return replace(
        base,
        pools={"gpus": replace(pool, nodes=nodes, spot_nodes=nodes // 2 if spot else 0)},
        sharing=sharing,
        variation=VariationSpec(noise=0.1, straggler_share=share, straggler_factor=factor),
    )


@lru_cache(maxsize=4)
def _cluster(spot: float) -> Cluster:
    pool: dict[str, Any] = {"accelerator": "L40S"}
    if spot:
        pool["spot"] = {"preemptions_per_hour": spot, "notice_s": 0.5, "return_s": 2.0}
        pool["use_spot"] = True
    store = {"gb_per_s": 1000, "latency_ms": 0}
    return make_cluster({"name": "fuzz", "pools": {"gpus": pool}, "object_store": store})
