"""The trial as it is rendered, run here, then the chart's own test, a key and a job as the notes
say; and the same with Knative, on stand-ins of its cluster, with the functions' own processes."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.helm import EXAMPLES, ROOT, Helm
from tests.support.helm_cluster import helm_cluster
from tests.support.installed import PROGRAM, Installed, beside, container_of, installed
from tests.support.knative_cluster import TOKEN
from tests.support.kube_api import KubeApi

pytestmark = pytest.mark.slow
STEPS = 15


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
        timeout=120,
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


@contextlib.contextmanager
def _on_knative(helm: Helm, folder: Path) -> Iterator[tuple[Installed, KubeApi, dict[str, str]]]:
    """The controller as it is rendered, on stand-ins of its cluster, and an admin's environment."""
    rendered = helm.render({"platform": "knative", "functionDefaults.scaleDownDelay": "30s"})
    controller = rendered.one("Deployment", "demo-rlhfless-controller")
    container = container_of(controller)
    given = {item["name"]: item.get("value") for item in container["env"]}
    mount = next(m for m in container["volumeMounts"] if m["name"] == "platform")
    assert given["RLHFLESS_PLATFORM_FILE"] == mount["mountPath"] + "/platform.yaml"
    assert "RLHFLESS_FUNCTION_TOKEN" in given
    file = folder / "platform.yaml"
    file.write_text(rendered.one("ConfigMap", "demo-rlhfless-platform")["data"]["platform.yaml"])
    there = [("apis/apps/v1", "deployments", controller)]
    with helm_cluster(folder, there, knative=True) as (api, cluster):
        environment = {
            "RLHFLESS_PLATFORM_FILE": str(file),
            "RLHFLESS_FUNCTION_TOKEN": TOKEN,
            "KUBECONFIG": str(cluster),
        }
        with installed(rendered, folder, environment) as running:
            assert httpx.get(running.url + "/readyz").status_code == 200
            key = ["keys", "create", "--tenant", "default", "--name", "me", "--scope", "admin"]
            made = next(word for word in _command(running, *key).split() if word[:4] == "rlk_")
            yield running, api, {"RLHFLESS_URL": running.url, "RLHFLESS_API_KEY": made}
        assert ("patch", "services") in api.requests
        assert not api.store.all(("apis/serving.knative.dev/v1", "services", "rlhf"))


def test_a_job_runs_on_knative_as_it_is_rendered(helm: Helm, tmp_path: Path) -> None:
    """Values, chart, service, Services, pods by the chart's templates, and nothing left of them."""
    shutil.copytree(ROOT / "examples" / "quickstart", tmp_path / "quickstart")
    shutil.copy(ROOT / "examples" / "quickstart.yaml", tmp_path)
    with (tmp_path / "quickstart" / "rewards.py").open("a") as rewards:
        rewards.write('\nprint("the reward is loaded", flush=True)\n')
    job = ["submit", str(tmp_path / "quickstart.yaml"), "--watch"]
    job += ["--set", "training.steps=1", "--set", "rollout.max_instances=1"]
    with _on_knative(helm, tmp_path) as (running, _, me):
        assert "succeeded: all steps done" in _command(running, *job, **me)
        logs = _command(running, "logs", "quickstart", "--json", **me)
        told = [json.loads(line) for line in logs.splitlines()]
        sources = [line["source"] for line in told if "the reward is loaded" in line["text"]]
        assert sources
        assert all("-reward-" in source for source in sources)  # the names of its pods


def test_an_upgrade_in_the_middle_of_a_job(helm: Helm, tmp_path: Path) -> None:
    """A new replica is ready before the old one is told to go, which hands the job on in time."""
    job = ["submit", "examples/quickstart.yaml", "--set", f"training.steps={STEPS}"]
    job += ["--set", "rollout.max_instances=1"]
    with _on_knative(helm, tmp_path) as (old, _, me):
        _command(old, *job, **me)

        def steps(running: Installed) -> list[int]:
            there = me | {"RLHFLESS_URL": running.url}
            told = _command(running, "metrics", "quickstart", "--json", **there)
            return [json.loads(line)["step"] for line in told.splitlines()]

        _until(lambda: bool(steps(old)))
        with beside(old, tmp_path / "new") as new:
            old.drain()
            done = len(steps(new))
            there = me | {"RLHFLESS_URL": new.url}
            assert "succeeded: all steps done" in _command(new, "watch", "quickstart", **there)
            assert done < STEPS  # it was in the middle
            assert steps(new) == [*range(1, STEPS + 1)]


def _until(done: Callable[[], bool], within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.2)
