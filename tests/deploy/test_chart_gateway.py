"""The way in by the Gateway API: TLS ends at a Gateway, which is there or is made."""

from __future__ import annotations

import jsonschema
import pytest

from tests.support.helm import Helm, Manifest
from tests.support.manifests import check_manifest

HOST = "rlhfless.example.com"
GIVEN = {
    "gateway.enabled": "true",
    "gateway.host": HOST,
    "gateway.parentRefs[0].name": "public",
    "gateway.parentRefs[0].namespace": "gateways",
    "gateway.parentRefs[0].sectionName": "https",
}
MADE = {"gateway.enabled": "true", "gateway.host": HOST, "gateway.className": "eg"}


def _route(helm: Helm, values: dict[str, str]) -> Manifest:
    return helm.render(values).one("HTTPRoute", "demo-rlhfless")


def test_a_route_at_a_gateway_that_is_there(helm: Helm) -> None:
    rendered = helm.render(GIVEN)
    assert not rendered.of("Gateway")
    (route,) = rendered.of("HTTPRoute")
    check_manifest(route)
    parent = {"name": "public", "namespace": "gateways", "sectionName": "https"}
    assert route["spec"]["parentRefs"] == [parent]
    assert route["spec"]["hostnames"] == [HOST]


def test_it_leads_to_the_service_and_bounds_no_stream(helm: Helm) -> None:
    values = GIVEN | {"controller.service.port": "8080"}
    rendered = helm.render(values)
    (rule,) = _route(helm, values)["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    service = rendered.one("Service", backend["name"])
    assert [port["port"] for port in service["spec"]["ports"]] == [backend["port"]]
    assert rule["timeouts"] == {"request": "0s"}
    (left,) = _route(helm, GIVEN | {"gateway.requestTimeout": ""})["spec"]["rules"]
    assert "timeouts" not in left


def test_a_gateway_of_its_own_ends_tls(helm: Helm) -> None:
    rendered = helm.render(MADE | {"gateway.tls.secretName": "mine"})
    gateway = rendered.one("Gateway", "demo-rlhfless")
    check_manifest(gateway)
    listeners = {listener["name"]: listener for listener in gateway["spec"]["listeners"]}
    tls = listeners["https"]["tls"]
    assert (listeners["https"]["protocol"], tls["mode"]) == ("HTTPS", "Terminate")
    assert tls["certificateRefs"] == [{"kind": "Secret", "name": "mine"}]
    assert {listener["hostname"] for listener in listeners.values()} == {HOST}


def test_without_tls_one_is_only_sent_to_it(helm: Helm) -> None:
    rendered = helm.render(MADE)
    by_section = {r["spec"]["parentRefs"][0]["sectionName"]: r for r in rendered.of("HTTPRoute")}
    assert by_section["https"]["spec"]["rules"][0]["backendRefs"]
    (plain,) = by_section["http"]["spec"]["rules"]
    assert "backendRefs" not in plain
    assert plain["filters"][0]["requestRedirect"]["scheme"] == "https"


def test_a_misspelt_route_is_refused(helm: Helm) -> None:
    route = _route(helm, GIVEN)
    route["spec"]["rules"][0]["backendRefz"] = []
    with pytest.raises(jsonschema.ValidationError):
        check_manifest(route)


def test_the_notes_name_it(helm: Helm) -> None:
    """Of an installation that is not sent anywhere; Helm asks no cluster then."""
    arguments = ["install", "demo", "deploy/helm/rlhfless", "--dry-run=client"]
    sets = [part for item in GIVEN.items() for part in ("--set", "=".join(item))]
    done = helm.run(*arguments, *sets)
    assert f"RLHFLESS_URL=https://{HOST}" in done.stdout, done.stderr
