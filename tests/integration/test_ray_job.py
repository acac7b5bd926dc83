"""Jobs from the command line on a Ray of their own: as on the local platform, whatever happens."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from tests.support.runs import ROOT, Result, Workplace, assert_same, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = str(ROOT / "examples" / "quickstart.yaml")
STEPS = 4
RAY = ["--platform", "ray"]


def test_the_quick_start_learns_on_ray(tmp_path: Path, tiny_model_dir: Path) -> None:
    short = ["--set", f"training.steps={STEPS}", "--set", "evaluation.dataset.limit=64"]
    with Workplace(tmp_path, tiny_model_dir) as place:
        ended = place.run("run", JOB, *RAY, *short)
        assert ended.code == 0, ended.explained()
        assert not ended.err
        assert "Learned: held-out accuracy" in ended.out
        place.assert_nothing_left()
        result = place.result("runs/quickstart")
        summary = result.summary
        assert (summary["status"], summary["steps"]) == ("succeeded", STEPS)
        assert summary["eval_after"] > summary["eval_before"] + 0.15
        assert set(summary["function_seconds"]) == {"rollout", "reward", "training"}
        logs = {path.name.partition("-")[0] for path in (result.path / "logs").glob("*-*.log")}
        assert logs == {"rollout", "reward", "training"}


def test_a_replica_killed_in_the_middle_of_a_rollout(place: Workplace, undisturbed: Result) -> None:
    place.gate("tokens", "step-000001/rollout/actor-*", after="Tokens")
    running = place.start_job("run", *RAY, gated=True)
    os.kill(place.reached("tokens", running), signal.SIGKILL)
    place.open("tokens")
    ended = running.ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
    place.assert_nothing_left()
    calls = place.calls("step-000001/rollout/actor-")
    assert all(not any(call["held"].values()) for call in calls[:1])
    taken_up = [n for call in calls[1:] for n in call["held"].values()]
    assert any(taken_up), "what had come was generated again"


def test_a_controller_killed_leaves_no_ray(place: Workplace, undisturbed: Result) -> None:
    place.gate("train", "step-000001/training/train")
    running = place.start_job("run", *RAY, gated=True)
    place.reached("train", running)
    running.signal(signal.SIGKILL)
    running.process.wait()
    place.assert_nothing_left()
    place.open("train")
    ended = place.start_job("run", *RAY, "--resume", gated=True).ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--platform", "knative"], "there is no platform 'knative'"),
        (["--ray-address", "http://127.0.0.1:1"], "--ray-address"),
        ([*RAY, "--ray-address", "ray://head:10001"], "is no address of Ray's dashboard"),
        ([*RAY, "--ray-address", "http://127.0.0.1:1"], "nobody answers as Ray's dashboard"),
        ([*RAY, "--ray-serve-url", "http://127.0.0.1:1"], "--ray-serve-url needs --ray-address"),
    ],
)
def test_what_cannot_be_is_told(place: Workplace, arguments: list[str], says: str) -> None:
    ended = place.run("run", "job.yaml", *arguments)
    assert ended.code == (4 if "nobody" in says else 2), ended.explained()
    assert says in ended.err
    assert "Traceback" not in ended.err
    place.assert_nothing_left()


def test_without_ray_its_name_is_told(place: Workplace) -> None:
    hidden = place.folder / "hidden"
    hidden.mkdir()
    hook = "import importlib.util as u\nreal = u.find_spec\n"
    hook += "u.find_spec = lambda name, *a: None if name == 'ray' else real(name, *a)\n"
    (hidden / "sitecustomize.py").write_text(hook)
    ended = place.run("run", "job.yaml", *RAY, PYTHONPATH=f"{hidden}{os.pathsep}{ROOT}")
    assert ended.code == 2, ended.explained()
    assert "Ray is not installed" in ended.err
    assert "pip install 'rlhfless[ray]'" in ended.err
    assert not (place.folder / "runs").exists()


def test_a_job_too_large_for_the_machine_says_what_ray_lacks(place: Workplace) -> None:
    content = yaml.safe_load(place.job_file.read_text())
    content["rollout"]["accelerator"] = "cuda"
    place.job_file.write_text(yaml.safe_dump(content))
    ended = place.run("run", "job.yaml", *RAY)
    assert ended.code == 3, ended.explained()
    assert "GPU and no node has more than 0" in ended.err
    problem = json.loads((place.folder / "runs" / "tiny" / "summary.json").read_text())["error"]
    assert problem["category"] == "capacity"


def test_a_training_instance_of_two_workers_and_one_of_them_killed(place: Workplace) -> None:
    place.change_job(training={"workers": 2})
    running = place.start_job("run", *RAY)

    def followers() -> list[int]:
        return [pid for pid, line in place.processes().items() if "--workers=2" in line]

    wait_for(lambda: "step 1/3" in running.so_far().out or not running.alive(), "a step")
    for pid in followers():
        os.kill(pid, signal.SIGKILL)
    ended = running.ended(300)
    assert ended.code == 0, ended.explained()
    result = place.result()
    assert (result.summary["status"], result.summary["steps"]) == ("succeeded", 3)
    assert [m.version for m in result.manifests()] == [1, 2, 3]
    assert len(list((result.path / "logs").glob("training-*.log"))) == 2
    place.assert_nothing_left()
