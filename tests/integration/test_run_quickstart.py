"""The quick start, shortened: what it promises a person and a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.metrics_page import assert_as_documented, names
from tests.support.runs import ROOT, Ended, Result, Workplace

pytestmark = pytest.mark.slow

JOB = str(ROOT / "examples" / "quickstart.yaml")
STEPS = 4
SHORT = ["--set", f"training.steps={STEPS}", "--set", "evaluation.dataset.limit=64"]
FUNCTIONS = ("reward", "rollout", "training")


@pytest.fixture(scope="module")
def quickstart(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Iterator[tuple[Ended, Result]]:
    with Workplace(tmp_path_factory.mktemp("quickstart"), tiny_model_dir) as place:
        ended = place.start("run", JOB, *SHORT).ended()
        assert ended.code == 0, ended.explained()
        place.assert_nothing_left()
        yield ended, place.result("runs/quickstart")


def test_it_learns_and_says_so(quickstart: tuple[Ended, Result]) -> None:
    ended, result = quickstart
    summary = result.summary
    assert summary["eval_before"] < 0.5
    assert summary["eval_after"] > summary["eval_before"] + 0.15
    assert f"in {STEPS} steps" in ended.out
    assert "Learned: held-out accuracy" in ended.out
    assert "from_pretrained('runs/quickstart/weights')" in ended.out
    assert all(f"step {step}/{STEPS}" in ended.out for step in range(1, STEPS + 1))
    assert not ended.err


def test_the_metrics_have_the_documented_names(quickstart: tuple[Ended, Result]) -> None:
    _, result = quickstart
    assert [m["step"] for m in result.metrics] == list(range(1, STEPS + 1))
    assert_as_documented(result.metrics, ["exact_match"], kl=False, ppo=False)
    for metrics in result.metrics:
        assert metrics["reward/exact_match"] == metrics["reward/mean"]
        assert all(isinstance(value, int | float) for value in metrics.values())
        assert metrics["functions/busy_s"] + metrics["functions/cold_s"] <= (
            metrics["functions/held_s"] + 1e-6
        )
        assert 0 <= metrics["functions/idle_fraction"] <= 1
        if not metrics["rollout/samples_moved"]:  # a group may be split over both actors
            computed, saved = metrics["prefill/tokens_computed"], metrics["prefill/tokens_saved"]
            assert (computed + saved) % 8 == 0
            assert 3 <= saved / computed <= 7
        assert metrics["mismatch/max_abs_logprob_diff"] < 1e-3


def test_the_summary_has_the_documented_names(quickstart: tuple[Ended, Result]) -> None:
    _, result = quickstart
    summary = result.summary
    assert set(names("summary.json")) - {"error"} <= summary.keys()
    assert (summary["status"], summary["steps"]) == ("succeeded", STEPS)
    assert summary["cost_usd"] is None
    assert tuple(sorted(summary["function_seconds"])) == FUNCTIONS
    assert len(summary["samples_before"]) == len(summary["samples_after"]) == 3
    prompts = [[s["prompt"] for s in summary[f"samples_{when}"]] for when in ("before", "after")]
    assert prompts[0] == prompts[1]


def test_the_samples_are_all_there(quickstart: tuple[Ended, Result]) -> None:
    _, result = quickstart
    for step, metrics in enumerate(result.metrics, 1):
        samples = result.samples(step)
        assert len(samples) == 32 * 8
        assert set(names("samples/step-000001.jsonl")) <= next(iter(samples.values())).keys()
        rewards = [s["reward"] for s in samples.values()]
        assert sum(rewards) / len(rewards) == pytest.approx(metrics["reward/mean"])
        assert max(s["num_tokens"] for s in samples.values()) == metrics["response_length/max"]
        assert {s["version"] for s in samples.values()} == {step - 1}


def test_the_weights_load_and_are_the_newest_version(quickstart: tuple[Ended, Result]) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, result = quickstart
    folder = result.path / "weights"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("a1b7?", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    assert "=" in tokenizer.decode(answer[0], skip_special_tokens=True)
    manifest = result.manifests()[-1]
    assert manifest.version == STEPS
    (data,) = [n for n in manifest.files if n.endswith(".safetensors")]
    version = result.path / "store" / "weights" / result.id / f"v{STEPS:06d}"
    stored, exported = load_file(version / data), model.state_dict()
    for name, tensor in stored.items():
        assert torch.equal(exported[name], tensor), name


def test_the_folder_has_a_plot_and_the_job(quickstart: tuple[Ended, Result]) -> None:
    _, result = quickstart
    assert (result.path / "progress.png").read_bytes().startswith(b"\x89PNG")
    resolved = yaml.safe_load((result.path / "job.yaml").read_text())
    assert resolved["training"]["steps"] == STEPS
    assert resolved["algorithm"]["kl"]["coefficient"] == 0.0  # defaults are spelt out
    assert Path(resolved["model"]["path"]).is_absolute()


def test_the_resolved_job_is_the_job(
    quickstart: tuple[Ended, Result], tmp_path: Path, tiny_model_dir: Path
) -> None:
    """``--dry-run`` prints what a run writes; read back from elsewhere it is the same job."""
    _, result = quickstart
    with Workplace(tmp_path, tiny_model_dir) as place:
        first = place.run("run", JOB, *SHORT, "--dry-run")
        (place.folder / "copy.yaml").write_text(first.out)
        second = place.run("run", "copy.yaml", "--dry-run")
        assert first.code == second.code == 0
        assert first.out == second.out == (result.path / "job.yaml").read_text()
        assert not (place.folder / "runs").exists()


def test_rewards_can_be_tried_before_anything_is_trained(place: Workplace) -> None:
    generated = place.run("reward-check", JOB, "--rows", "3")
    assert generated.code == 0, generated.explained()
    assert "1 reward(s) scored 3 row(s)" in generated.out
    assert "exact_match" in generated.out
    first = json.loads((ROOT / "examples/quickstart/data/train.jsonl").read_text().splitlines()[0])
    given = place.run("reward-check", JOB, "--rows", "2", "--completion", first["answer"])
    assert given.code == 0, given.explained()
    # Right for the row whose answer it is, wrong for the other: the reward and the total.
    assert re.findall(r"(1\.000) +(1\.000)", given.out) == [("1.000", "1.000")]
    assert re.findall(r"(0\.000) +(0\.000)", given.out) == [("0.000", "0.000")]
    place.assert_nothing_left()
