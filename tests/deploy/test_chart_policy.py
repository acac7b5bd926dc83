"""What no pod of ours may be, and who may talk to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.platforms.gang_checks import GANG_RULES
from controller.platforms.knative_checks import RULES
from tests.support.helm import DIGEST, DIGESTS, EXAMPLES, Helm, Manifest, Rendered, pods_of

KNATIVE = {"platform": "knative"}
GANGS = {"knative.training.gang": "kueue", "knative.training.kueueQueue": "gpus"}
EVERYWHERE = [None, *EXAMPLES]
INTERNET = "0.0.0.0/0"
S3 = {
    "store.type": "s3",
    "store.bucket": "weights",
    "networkPolicy.storeCidrs[0]": "10.1.0.0/16",
}


@pytest.mark.parametrize("example", EVERYWHERE, ids=lambda p: p.stem if p else "knative")
def test_pods_are_restricted(helm: Helm, example: Path | None) -> None:
    """As Kubernetes' Pod Security Standard ``restricted`` has it, and more."""
    rendered = helm.render(DIGESTS if example else KNATIVE, [example] if example else [])
    pods = [pod for manifest in rendered.manifests for pod in pods_of(manifest)]
    assert len(pods) >= 2
    for pod in pods:
        _check_pod(pod)
        for container in pod["containers"]:
            _check_container(container)


def _check_pod(pod: Manifest) -> None:
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["enableServiceLinks"] is False
    for volume in pod.get("volumes", ()):
        assert "hostPath" not in volume
        if "emptyDir" in volume:
            assert volume["emptyDir"]["sizeLimit"]


def _check_container(container: Manifest) -> None:
    security = container["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not security.get("privileged")
    resources = container["resources"]
    for amounts in (resources["requests"], resources["limits"]):
        assert {"cpu", "memory", "ephemeral-storage"} <= amounts.keys()
    name, _, tag = container["image"].rpartition(":")
    assert name
    assert tag != "latest"


@pytest.mark.parametrize("stem", ["gke", "eks-spot"])
def test_production_images_are_pinned_by_digest(helm: Helm, stem: str) -> None:
    example = next(path for path in EXAMPLES if path.stem == stem)
    rendered = helm.render(DIGESTS, [example])
    for manifest in rendered.manifests:
        for pod in pods_of(manifest):
            assert all(c["image"].endswith("@" + DIGEST) for c in pod["containers"])


def test_secrets_are_by_reference_only(helm: Helm) -> None:
    rendered = helm.render(KNATIVE)
    secrets = rendered.of("Secret")
    texts = [str(v) for s in secrets for v in (s.get("data") or s["stringData"]).values()]
    assert len(texts) == 4
    for manifest in rendered.manifests:
        if manifest["kind"] != "Secret":
            assert not [text for text in texts if text in str(manifest)]


@pytest.mark.parametrize("values", [{}, GANGS], ids=["knative", "gangs"])
def test_rights_are_of_the_namespace_and_few(helm: Helm, values: dict[str, str]) -> None:
    rendered = helm.render(KNATIVE | values)
    assert not rendered.of("ClusterRole")
    assert not rendered.of("ClusterRoleBinding")
    (role,) = rendered.of("Role")
    given = {
        (verb, group, resource): rule.get("resourceNames")
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    owner = {("get", "apps", "deployments"): ["demo-rlhfless-controller"]}
    asked = RULES + (GANG_RULES if "knative.training.gang" in values else ())
    assert given == dict.fromkeys(asked) | owner  # what the platform asks for, and nothing else


def test_the_local_platform_asks_nothing_of_kubernetes(helm: Helm) -> None:
    assert not helm.render().of("Role")


def test_only_the_knative_controller_has_a_token_of_the_cluster(helm: Helm) -> None:
    def tokens(rendered: Rendered) -> list[bool]:
        pods = [pod for manifest in rendered.manifests for pod in pods_of(manifest)]
        return sorted(pod["automountServiceAccountToken"] for pod in pods)

    assert not any(tokens(helm.render()))
    assert tokens(helm.render(KNATIVE)).count(True) == 1


def _policy(rendered: Rendered, name: str) -> Manifest:
    spec: Manifest = rendered.one("NetworkPolicy", f"demo-rlhfless-{name}")["spec"]
    return spec


def _peers(rules: list[Manifest], side: str) -> list[Any]:
    return [peer for rule in rules for peer in rule[side]]


def test_only_the_controller_and_knative_reach_functions(helm: Helm) -> None:
    policy = _policy(helm.render(KNATIVE), "functions")
    peers = _peers(policy["ingress"], "from")
    pods = [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer]
    assert [labels["app.kubernetes.io/component"] for labels in pods] == ["controller"]
    spaces = [p["namespaceSelector"]["matchLabels"] for p in peers if "namespaceSelector" in p]
    assert {"kubernetes.io/metadata.name": "knative-serving"} in spaces
    assert all(list(labels) == ["kubernetes.io/metadata.name"] for labels in spaces)


def test_reward_code_reaches_no_internet_unless_it_is_let(helm: Helm) -> None:
    with_volume, with_s3 = helm.render(KNATIVE), helm.render(KNATIVE | S3)
    (dns,) = _policy(with_volume, "functions")["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    _, store = _policy(with_s3, "functions")["egress"]
    assert store["to"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    names = {policy["metadata"]["name"] for policy in with_s3.of("NetworkPolicy")}
    assert not {name for name in names if "internet" in name}
    let = _policy(helm.render(KNATIVE | {"functions.reward.egress": "true"}), "reward-internet")
    assert let["podSelector"]["matchLabels"]["rlhfless.io/function"] == "reward"
    (block,) = _peers(let["egress"], "to")
    assert block["ipBlock"]["cidr"] == INTERNET
    assert "169.254.0.0/16" in block["ipBlock"]["except"]  # the cloud's metadata


def test_only_the_controller_reaches_redis(helm: Helm) -> None:
    policy = _policy(helm.render(), "redis")
    (peer,) = _peers(policy["ingress"], "from")
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "controller"
    assert policy["egress"] == []


def test_only_ranks_of_gangs_reach_each_other(helm: Helm) -> None:
    assert "demo-rlhfless-ranks" not in str(helm.render(KNATIVE).of("NetworkPolicy"))
    policy = _policy(helm.render(KNATIVE | GANGS), "ranks")
    ranks = policy["podSelector"]
    assert ranks["matchLabels"]["rlhfless.io/function"] == "training"
    assert ranks["matchLabels"]["app.kubernetes.io/instance"] == "demo"
    assert ranks["matchExpressions"] == [{"key": "rlhfless.io/gang", "operator": "Exists"}]
    for side, key in (("ingress", "from"), ("egress", "to")):
        (rule,) = policy[side]
        assert rule == {key: [{"podSelector": ranks}]}  # on any port
