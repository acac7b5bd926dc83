"""Asks a cluster what ``knative_checks`` judges."""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from pydantic import ValidationError

from controller.platforms.knative_checks import (
    AUTOSCALER,
    DEFAULTS,
    FEATURES,
    SYSTEM,
    Facts,
    rules,
)
from controller.platforms.knative_rights import allowed
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import (
    CONFIG_MAPS,
    NODES,
    SERVICES,
    STORAGE_CLASSES,
    Kind,
    Kube,
    Object,
)
from rlhfless.errors import ForbiddenError, UserError

CLAIMS = Kind("api/v1", "persistentvolumeclaims")
LOCAL_QUEUES = tuple(
    Kind(f"apis/kueue.x-k8s.io/{version}", "localqueues") for version in ("v1beta2", "v1beta1")
)
FILE = "platform.yaml"


async def installed_settings(kube: Kube, namespace: str, release: str) -> KnativeSettings:
    """What the chart has put into the namespace. Raises ``UserError`` where it has not."""
    labels = {"app.kubernetes.io/instance": release}
    maps, _ = await kube.list(CONFIG_MAPS, namespace, labels)
    for item in maps:
        if FILE in item.get("data", {}):
            try:
                return KnativeSettings.model_validate(yaml.safe_load(item["data"][FILE]))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                name = item["metadata"]["name"]
                raise UserError(f"{FILE} of {name}: {where}: {first['msg']}") from error
    raise UserError(
        f"no release {release} with functions in pods is in the namespace {namespace}",
        hint="give --namespace and --release as with helm, or --file",
    )


async def examine(kube: Kube, settings: KnativeSettings) -> Facts:
    """Raises ``TransientError`` if the API server cannot be reached; what may not be read is left
    open."""
    namespace = settings.namespace
    try:
        await kube.list(SERVICES, namespace)
        knative = True
    except ForbiddenError:
        knative = True  # the API server knows what it forbids
    except UserError:
        return Facts(knative=False)
    maps: dict[str, Mapping[str, str] | None] = {
        name: await _data(kube, name) for name in (FEATURES, AUTOSCALER, DEFAULTS)
    }
    rights = await allowed(kube, settings, rules(settings))
    claims = _by_name(await _all(kube, CLAIMS, namespace))
    classes = _by_name(await _all(kube, STORAGE_CLASSES))
    kueue, queues = False, None
    if settings.training.gang == "kueue":
        kueue, queues = await _queues(kube, namespace)
    nodes = await _all(kube, NODES)
    return Facts(knative, maps, nodes, rights, claims, classes, kueue, queues)


async def _queues(kube: Kube, namespace: str) -> tuple[bool, dict[str, Object] | None]:
    """Whether Kueue is there, and its LocalQueues by name."""
    for kind in LOCAL_QUEUES:
        try:
            found = await _all(kube, kind, namespace)
        except UserError:  # a version that is not there
            continue
        return True, _by_name(found)
    return False, None


def _by_name(items: list[Object] | None) -> dict[str, Object] | None:
    return None if items is None else {item["metadata"]["name"]: item for item in items}


async def _data(kube: Kube, name: str) -> dict[str, str] | None:
    try:
        found = await kube.get(CONFIG_MAPS, name, SYSTEM)
    except ForbiddenError:
        return None
    return {} if found is None else dict(found.get("data") or {})


async def _all(kube: Kube, kind: Kind, namespace: str = "") -> list[Object] | None:
    try:
        return (await kube.list(kind, namespace))[0]
    except ForbiddenError:
        return None
