import itertools
from pathlib import Path
from typing import Any

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from simulator import service_estimate
from simulator.estimate import estimate
from simulator.service_estimate import INSTANCES, WEIGHT, estimate_apart, estimate_document


def spec(**changes: Any) -> JobSpec:
    whole: dict[str, Any] = {
        "model": {"path": "Qwen/Qwen2.5-0.5B"},
        "dataset": {"path": "org/data", "limit": 64},
        "rewards": [{"python": "/nowhere/r.py:f"}],
        "algorithm": {"group_size": 4},
        "rollout": {"accelerator": "cuda", "max_instances": 2, "max_tokens": 64},
        "training": {"accelerator": "cuda", "prompts_per_step": 4, "steps": 4},
        "webhooks": [{"url": "https://hook.example/", "secret": "not for the simulator"}],
    }
    return JobSpec.model_validate(whole | changes)


def test_an_estimate_is_that_of_the_command_line_with_a_frontier() -> None:
    found, usual = estimate_document(spec(), None), estimate(spec())
    assert (found.cluster, found.total_steps) == ("h100-8", 4)
    assert (found.wall_s, found.held_s, found.usd) == (usual.seconds, usual.held_s, usual.usd)
    assert found.functions.keys() == {"rollout", "reward", "training"}
    assert found.functions["rollout"].held_s == usual.usage["rollout"].held_s
    assert any("no dataset org/data" in said for said in found.assumptions)
    points = [(point.wall_s, point.usd) for point in found.frontier]
    for (fast, dear), (slow, cheap) in itertools.pairwise(points):
        assert fast < slow
        assert dear is not None and cheap is not None and dear > cheap
    assert found.wall_s >= points[0][0]
    assert found.functions["reward"].usd == 0
    for point in found.frontier:
        assert point.settings.keys() == {WEIGHT, INSTANCES}
        assert 1 <= point.settings[INSTANCES] <= 4


def test_when_time_is_up_the_frontier_is_what_there_is() -> None:
    seconds = iter([0.0, 1.0, 100.0])
    found = estimate_document(spec(), "h100-8", now=lambda: next(seconds))
    assert len(found.frontier) <= 2
    assert any("leaves" in said for said in found.assumptions)


@pytest.mark.parametrize("cluster", ["unknown", "/etc/passwd", "../clusters/h100-8.yaml", ""])
def test_only_known_clusters_are_taken(cluster: str) -> None:
    with pytest.raises(UserError) as refused:
        estimate_document(spec(), cluster)
    assert refused.value.param == "cluster"
    assert "h100-8" in (refused.value.hint or "")


def test_a_process_of_its_own_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "Qwen" / "Qwen2.5-0.5B"
    model.mkdir(parents=True)
    (model / "config.json").write_text("not read: a name is no path")
    monkeypatch.chdir(tmp_path)
    there = estimate_apart(spec(), "h100-8")
    assert there.wall_s > 0
    with pytest.raises(UserError) as refused:
        estimate_apart(spec(model={"path": "org/unheard-of"}), None)
    assert refused.value.param == "model.path"


def test_what_is_too_large_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_estimate, "TIMEOUT_S", 0.05)
    with pytest.raises(UserError, match="longer than"):
        estimate_apart(spec(), None)
