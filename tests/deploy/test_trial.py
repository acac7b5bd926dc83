"""The trial as it is rendered, run here, then the chart's own test and a key as the notes say; and
a controller for Knative, with an API server that has nothing on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.helm import EXAMPLES, ROOT, Helm
from tests.support.helm_cluster import helm_cluster
from tests.support.installed import PROGRAM, Installed, container_of, installed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trial(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    (kind,) = (path for path in EXAMPLES if path.stem == "kind")
    with installed(helm.render(files=[kind]), tmp_path_factory.mktemp("trial")) as running:
        yield running


def test_probes_answer(trial: Installed) -> None:
    container = container_of(trial.rendered.one("Deployment", "demo-rlhfless-controller"))
    for probe in ("readinessProbe", "livenessProbe"):
        assert httpx.get(trial.url + container[probe]["httpGet"]["path"]).status_code == 200


def test_helm_test_passes(trial: Installed) -> None:
    container = trial.rendered.one("Pod", "demo-rlhfless-test")["spec"]["containers"][0]
    assert container["command"] == ["python", "-c"]
    script, address = container["args"]
    assert address == "http://demo-rlhfless:80"
    subprocess.run([sys.executable, "-c", script, trial.url], check=True)


def _command(running: Installed, *arguments: str, **environment: str) -> str:
    """What a command of ours prints, in the controller's environment."""
    done = subprocess.run(
        [str(PROGRAM / "rlhfless"), *arguments],
        env=running.environment | environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_a_job_runs_with_the_first_key_of_the_notes(trial: Installed) -> None:
    key = ["keys", "create", "--tenant", "default", "--name", "me", "--scope", "admin"]
    made = next(word for word in _command(trial, *key).split() if word.startswith("rlk_"))
    answer = httpx.get(trial.url + "/v1/models", headers={"Authorization": f"Bearer {made}"})
    assert "quickstart" in answer.text  # the library that the image brings
    job = ["submit", "examples/quickstart.yaml", "--set", "training.steps=1", "--watch"]
    told = _command(trial, *job, RLHFLESS_URL=trial.url, RLHFLESS_API_KEY=made)
    assert "succeeded: all steps done" in told


def test_a_controller_for_knative_starts_from_what_is_rendered(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render({"platform": "knative"})
    container = container_of(rendered.one("Deployment", "demo-rlhfless-controller"))
    given = {item["name"]: item.get("value") for item in container["env"]}
    mount = next(m for m in container["volumeMounts"] if m["name"] == "platform")
    assert given["RLHFLESS_PLATFORM_FILE"] == mount["mountPath"] + "/platform.yaml"
    assert "RLHFLESS_FUNCTION_TOKEN" in given
    file = tmp_path / "platform.yaml"
    file.write_text(rendered.one("ConfigMap", "demo-rlhfless-platform")["data"]["platform.yaml"])
    with helm_cluster(tmp_path) as (api, cluster):
        environment = {
            "RLHFLESS_PLATFORM_FILE": str(file),
            "RLHFLESS_FUNCTION_TOKEN": "token",
            "KUBECONFIG": str(cluster),
        }
        with installed(rendered, tmp_path, environment) as running:
            assert httpx.get(running.url + "/readyz").status_code == 200
        assert ("list", "services") in api.requests  # whatever an earlier one may have left
        assert not {verb for verb, _ in api.requests} & {"create", "delete", "patch"}
