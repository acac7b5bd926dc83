"""Secrets leave a spec and come back; nothing that is kept or shown has them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.run_folder import RunFolder, changed_fields
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec, load_spec, parse_spec
from rlhfless.spec_secrets import (
    MASK,
    masked,
    merge,
    redacted,
    redacted_values,
    require_secrets,
    secret_texts,
    split,
)

SECRETS = ("wandb-key-123", "mlflow-token-9", "webhook-secret", "s3cret/pass")
RAW: dict[str, Any] = {
    "model": {"path": "org/model"},
    "dataset": {"path": "https://reader:hunter22@data.example/a.jsonl", "columns": {"a.b": "c"}},
    "rewards": [
        {"python": "rewards.exact:f"},
        {"http": "https://judge:s3cret%2Fpass@judge.example/score", "name": "judge"},
    ],
    "integrations": [
        {"type": "tensorboard"},
        {"type": "wandb", "api_key": "wandb-key-123"},
        {"type": "mlflow", "url": "https://mlflow.example", "api_key": "mlflow-token-9"},
    ],
    "webhooks": [{"url": "https://hooks.example/job", "secret": "webhook-secret"}],
    "metadata": {"a.b": "https://x:y@z.example"},
}


def job(**changes: Any) -> JobSpec:
    return parse_spec({**RAW, **changes})


def test_secrets_leave_and_come_back() -> None:
    shown, secrets = split(job())
    assert set(secrets) == {
        "dataset.path",
        "rewards.1.http",
        "integrations.1.api_key",
        "integrations.2.api_key",
        "webhooks.0.secret",
    }
    for secret in (*SECRETS, "hunter22", "s3cret%2Fpass"):
        assert secret not in json.dumps(shown)
    assert shown["rewards"][1]["http"] == f"https://{MASK}@judge.example/score"
    assert merge(json.loads(json.dumps(shown)), secrets) == job()


def test_every_dump_masks_keys() -> None:
    assert job().model_dump(mode="json")["integrations"][1]["api_key"] == MASK
    assert "wandb-key" not in job().model_dump_json() + repr(job()) + dump_spec(job())


def test_a_spec_without_its_secrets_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(dump_spec(job()))
    with pytest.raises(UserError, match=r"dataset\.path: the secret is masked") as raised:
        require_secrets(load_spec(str(path)))
    assert raised.value.param == "dataset.path"
    shown, secrets = split(job())
    del secrets["webhooks.0.secret"]
    with pytest.raises(UserError, match=r"webhooks\.0\.secret: the secret is masked"):
        merge(shown, secrets)
    require_secrets(job())


def test_a_run_folder_keeps_no_secret_and_resumes_with_the_job_file(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "run"))
    folder.create(job())
    folder.close()
    for path in (tmp_path / "run").iterdir():
        assert not any(secret in path.read_text() for secret in SECRETS)
    folder.resume(job(integrations=[], webhooks=[{"url": "http://elsewhere.example"}]))
    folder.close()


def test_what_a_job_reports_to_may_change_on_resume() -> None:
    assert changed_fields(job(), job(integrations=[], webhooks=[])) == []
    assert changed_fields(job(), load_dumped(job())) == []
    assert changed_fields(job(), job(seed=3)) == ["seed"]


def load_dumped(spec: JobSpec) -> JobSpec:
    return JobSpec.model_validate(yaml.safe_load(dump_spec(spec)))


def test_text_loses_secrets_and_passwords() -> None:
    secrets = secret_texts(job())
    said = "401 for wandb-key-123 at https://judge:s3cret%2Fpass@judge.example: s3cret/pass, a@b.c"
    told = redacted(said, secrets)
    assert told == f"401 for {MASK} at https://{MASK}@judge.example: {MASK}, a@b.c"
    assert redacted("http://token@h/x") == f"http://{MASK}@h/x"
    data = {"a": ["hunter22", 1, None], "b": {"c": "webhook-secret!"}}
    assert redacted_values(data, secrets) == {"a": [MASK, 1, None], "b": {"c": f"{MASK}!"}}


@given(st.text(alphabet="abcd*:/@ ", max_size=40))
def test_redaction_leaves_no_secret_and_changes_nothing_twice(text: str) -> None:
    once = redacted(text, ["abcd", "abcdabcd"])
    assert "abcd" not in once
    assert redacted(once, ["abcd", "abcdabcd"]) == once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"integrations": [{"type": "wandb", "api_key": "ab7"}]}, "integrations.0.api_key"),
        ({"integrations": [{"type": "tensorboard", "url": "x"}]}, "it takes no url"),
        ({"webhooks": [{"url": "ftp://x"}]}, "webhooks.0.url"),
        ({"webhooks": [{"url": "ftp://u:pass123@h"}]}, "webhooks.0.url"),
        ({"webhooks": [{"url": "http://x", "events": ["stopped"]}]}, "webhooks.0.events.0"),
    ],
)
def test_errors_name_the_field_and_no_secret(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        job(**changes)
    assert "ab7" not in raised.value.detail
    assert "pass123" not in raised.value.detail


def test_masked_is_what_split_shows() -> None:
    assert masked(job()) == split(job())[0]
