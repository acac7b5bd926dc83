"""The chart renders what a cluster takes, for the defaults and for every example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import rlhfless
from controller.service.metrics import ServiceMetrics
from tests.support.helm import CHART, DIGESTS, EXAMPLES, Helm, Manifest, Rendered
from tests.support.manifests import check_manifest

ALL_ON = {
    "platform": "knative",
    "controller.autoscaling.enabled": "true",
    "functions.reward.egress": "true",
    "functions.rollout.spot.enabled": "true",
    "gateway.enabled": "true",
    "gateway.className": "eg",
    "gateway.host": "rlhfless.example.com",
    "ingress.enabled": "true",
    "ingress.host": "rlhfless.example.com",
    "metrics.serviceMonitor.enabled": "true",
    "metrics.dashboard.enabled": "true",
}


def test_lint(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == rlhfless.__version__


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda p: p.stem if p else "defaults")
def test_what_is_rendered_is_valid(helm: Helm, example: Path | None) -> None:
    rendered = helm.render(DIGESTS, [example] if example else [])
    _check(rendered)


def test_with_everything_on_it_is_valid(helm: Helm) -> None:
    rendered = helm.render(ALL_ON)
    _check(rendered)
    kinds = {manifest["kind"] for manifest in rendered.manifests}
    assert {"Gateway", "HorizontalPodAutoscaler", "HTTPRoute", "Ingress"} <= kinds
    assert {"Role", "ServiceMonitor"} <= kinds


def _check(rendered: Rendered) -> None:
    assert rendered.manifests
    for manifest in rendered.manifests:
        check_manifest(manifest)
        assert manifest["metadata"]["namespace"] == "rlhf"


def test_what_is_misspelt_or_unknown_does_not_pass(helm: Helm) -> None:
    deployment = helm.render().one("Deployment", "demo-rlhfless-controller")
    deployment["spec"]["template"]["spec"]["tolerationz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check_manifest(deployment)
    monitor = helm.render(ALL_ON).one("ServiceMonitor", "demo-rlhfless")
    monitor["spec"]["endpoints"][0]["intervall"] = "30s"
    with pytest.raises(jsonschema.ValidationError):
        check_manifest(monitor)
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        check_manifest({"apiVersion": "example.com/v1", "kind": "Unheard"})


def test_two_releases_in_a_namespace_do_not_cross(helm: Helm) -> None:
    """No object of the same name, and no selector of one that meets pods of the other."""
    one, other = helm.render(ALL_ON, release="one"), helm.render(ALL_ON, release="two")
    assert not _names(one) & _names(other)
    labels = list(_pod_labels(other))
    assert len(labels) >= 6  # controller, Redis, test, functions
    for manifest in one.manifests:
        for selector in _selectors(manifest):
            assert selector
            assert not [found for found in labels if selector.items() <= found.items()]


def test_every_selector_meets_pods_of_its_own_release(helm: Helm) -> None:
    rendered = helm.render(ALL_ON)
    labels = list(_pod_labels(rendered))
    services = [_labels_of(manifest) for manifest in rendered.of("Service")]
    for manifest in rendered.manifests:
        for selector in _selectors(manifest):
            met = labels if manifest["kind"] != "ServiceMonitor" else services
            assert [found for found in met if selector.items() <= found.items()], selector


def test_a_long_release_name_fits(helm: Helm) -> None:
    """Labels and DNS names have 63 characters; a release may have 53."""
    rendered = helm.render(ALL_ON, release="r" * 53)
    _check(rendered)
    assert max(len(manifest["metadata"]["name"]) for manifest in rendered.manifests) <= 63


def _names(rendered: Rendered) -> set[tuple[str, str]]:
    return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendered.manifests}


def _labels_of(manifest: Manifest) -> dict[str, str]:
    labels: dict[str, str] = manifest["metadata"].get("labels", {})
    return labels


def _pod_labels(rendered: Rendered) -> list[dict[str, str]]:
    found = [_labels_of(manifest) for manifest in rendered.of("Pod")]
    for kind in ("Deployment", "StatefulSet"):
        found += [_labels_of(manifest["spec"]["template"]) for manifest in rendered.of(kind)]
    for manifest in rendered.of("ConfigMap"):
        platform = yaml.safe_load(manifest["data"].get("platform.yaml", "{}"))
        for function in platform.get("functions", {}).values():
            found += [_labels_of(pool["template"]) for pool in function["pools"]]
    return found


def _selectors(value: Any) -> list[dict[str, str]]:
    """Every set of labels that selects pods, wherever in a manifest."""
    if isinstance(value, list):
        return [found for item in value for found in _selectors(item)]
    if not isinstance(value, dict):
        return []
    if value.get("kind") == "Service":
        return [value["spec"]["selector"]]
    own = [
        value[key]["matchLabels"]
        for key in ("selector", "podSelector", "labelSelector")
        if isinstance(value.get(key), dict)
    ]
    return own + [found for item in value.values() for found in _selectors(item)]


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    metrics = ServiceMetrics().text().decode()
    known = set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
    dashboard = json.loads((CHART / "dashboards" / "rlhfless.json").read_text(encoding="utf-8"))
    shown = {
        re.sub("_bucket$", "", name)
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\brlhfless_\w+", target["expr"])
    }
    assert len(shown) >= 8
    assert not shown - known
