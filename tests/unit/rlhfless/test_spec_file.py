from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec, load_spec, parse_spec

MINIMAL: dict[str, Any] = {
    "model": {"path": "some-org/some-model"},
    "dataset": {"path": "train.jsonl"},
    "rewards": [{"python": "rewards.py:exact"}],
}


def write(folder: Path, raw: Any, name: str = "job.yaml") -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(raw) if not isinstance(raw, str) else raw)
    return str(path)


def problem(**changes: Any) -> UserError:
    with pytest.raises(UserError) as raised:
        parse_spec({**MINIMAL, **changes})
    return raised.value


def test_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    raw = {**MINIMAL, "model": {"path": "model"}, "evaluation": {"dataset": {"path": "e.parquet"}}}
    spec = load_spec(write(tmp_path, raw, "my job.yaml"))
    assert spec.name == "my-job"
    assert spec.model.path == str(tmp_path / "model")
    assert spec.dataset.path == str(tmp_path / "train.jsonl")
    assert spec.evaluation is not None
    assert spec.evaluation.dataset.path == str(tmp_path / "e.parquet")
    assert spec.rewards[0].python == f"{tmp_path}/rewards.py:exact"


def test_hub_names_modules_and_urls_stay_as_they_are(tmp_path: Path) -> None:
    raw = {
        **MINIMAL,
        "dataset": {"path": "s3://bucket/train.jsonl"},
        "rewards": [{"python": "package.module:exact"}, {"model": "org/reward-model"}],
    }
    spec = load_spec(write(tmp_path, raw))
    assert spec.model.path == "some-org/some-model"
    assert spec.dataset.path == "s3://bucket/train.jsonl"
    assert spec.rewards[0].python == "package.module:exact"
    assert spec.rewards[1].model == "org/reward-model"


def test_a_misspelt_folder_beside_the_job_is_a_path_not_a_hub_name(tmp_path: Path) -> None:
    (tmp_path / "assets" / "model").mkdir(parents=True)
    spec = load_spec(write(tmp_path, {**MINIMAL, "model": {"path": "assets/modle"}}))
    assert spec.model.path == str(tmp_path / "assets" / "modle")


def test_a_resolved_spec_reads_back_unchanged(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, MINIMAL))
    (tmp_path / "elsewhere").mkdir()
    assert load_spec(write(tmp_path / "elsewhere", dump_spec(spec))) == spec


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training.steps=5", ("training", "steps"), 5),
        ("training.learning_rate=2e-4", ("training", "learning_rate"), 2e-4),
        ("rewards.0.weight=2.5", ("rewards", 0, "weight"), 2.5),
        ("rollout.stop=['a', b]", ("rollout", "stop"), ["a", "b"]),
        ("budget.max_function_seconds=100", ("budget", "max_function_seconds"), 100.0),
    ],
)
def test_overrides(tmp_path: Path, override: str, path: tuple[Any, ...], value: Any) -> None:
    node: Any = load_spec(write(tmp_path, MINIMAL), [override])
    for part in path:
        node = node[part] if isinstance(part, int) else getattr(node, part)
    assert node == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "write key=value"),
        ("rewards.3.weight=1", "no index into a list of 1"),
        ("name.first=x", "holds a plain value"),
        ("training.stepz=5", "did you mean steps"),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_spec(write(tmp_path, {**MINIMAL, "name": "job"}), [override])


def test_unknown_fields_name_the_nearest() -> None:
    error = problem(rollout={"temprature": 0.5})
    assert error.param == "rollout.temprature"
    assert "did you mean temperature?" in error.detail
    assert "did you mean training?" in problem(trainning={}).detail
    assert "rewards.0.wieght: unknown field; did you mean weight?" in (
        problem(rewards=[{"python": "a.py:f", "wieght": 1}]).detail
    )


def test_all_problems_are_told_at_once() -> None:
    error = problem(seed=-1, training={"steps": 0}, rewards=[])
    assert error.detail.count("\n") == 2
    assert "seed" in error.detail
    assert "training.steps: input should be greater than 0 (got 0)" in error.detail
    assert "rewards" in error.detail


def test_a_missing_section_is_required() -> None:
    with pytest.raises(UserError, match="dataset: required"):
        parse_spec({k: v for k, v in MINIMAL.items() if k != "dataset"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": [{"python": "a.py:f", "http": "http://x"}]}, "exactly one of"),
        ({"rewards": [{"python": "a.py"}]}, "file.py:function"),
        ({"rewards": [{"python": "a.py:f"}, {"python": "b.py:f"}]}, "distinct names"),
        ({"algorithm": {"name": "grpo", "group_size": 1}}, "group_size must be >= 2"),
        ({"training": {"prompts_per_step": 3, "minibatches": 5}}, "must divide the 24 samples"),
        ({"training": {"trainable": "top_layers"}}, "top_layers must be > 0"),
        ({"budget": {"max_usd": 5}}, "price is unknown"),
        ({"name": "My Job"}, "name"),
        ({"algorithm": {"gamma": 0.9}}, "use ppo"),
    ],
)
def test_what_does_not_fit_together(changes: dict[str, Any], message: str) -> None:
    assert message in problem(**changes).detail


def test_files_that_are_no_job(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "quickstart.yaml")
    with pytest.raises(UserError, match=r"did you mean .*quickstart.yaml"):
        load_spec(str(tmp_path / "quikstart.yaml"))
    with pytest.raises(UserError, match="is a folder"):
        load_spec(str(tmp_path))
    with pytest.raises(UserError, match="not valid YAML"):
        load_spec(write(tmp_path, "a: [1", "bad.yaml"))
    with pytest.raises(UserError, match="must hold a mapping"):
        load_spec(write(tmp_path, "- 1", "list.yaml"))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="not a text file"):
        load_spec(str(binary))


def test_the_reference_runs_only_with_a_penalty() -> None:
    assert "reference" not in JobSpec.model_validate(MINIMAL).functions()
    with_penalty = {**MINIMAL, "algorithm": {"kl": {"coefficient": 0.1}}}
    assert "reference" in JobSpec.model_validate(with_penalty).functions()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"scheduling": {"strategy": "static"}}, "needs scheduling.stream_scoring"),
        ({"training": {"idle_timeout_s": 0}}, "idle_timeout_s above 0"),
        ({"algorithm": {"name": "reinforce_pp"}}, "advantages over the whole batch"),
        ({"training": {"trainable": "lora", "lora": {"dropout": 0.1}}}, "random dropout"),
    ],
)
def test_an_overlap_that_could_do_nothing_is_refused(
    sections: dict[str, Any], message: str
) -> None:
    changes = {**sections, "training": {"overlap": True, **sections.get("training", {})}}
    assert message in str(problem(**changes))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"algorithm": {"name": "ppo"}},
        {"algorithm": {"name": "reinforce_pp"}, "training": {"minibatches": 2}},
        {"algorithm": {"name": "reinforce_pp", "kl": {"coefficient": 0.1, "placement": "reward"}}},
    ],
)
def test_an_overlap_that_can_do_something_is_taken(sections: dict[str, Any]) -> None:
    changes = {**sections, "training": {"overlap": True, **sections.get("training", {})}}
    assert parse_spec({**MINIMAL, **changes}).training.overlap
