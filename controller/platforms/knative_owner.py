"""What everything that a platform makes in a cluster goes with."""

from __future__ import annotations

from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import Kind, Kube, Object
from rlhfless.errors import UserError


async def owner_reference(kube: Kube, settings: KnativeSettings) -> Object | None:
    """For ``metadata.ownerReferences``; None where the settings name no owner."""
    owner = settings.owner
    if owner is None:
        return None
    group = owner.api_version
    api = f"apis/{group}" if "/" in group else f"api/{group}"
    found = await kube.get(Kind(api, f"{owner.kind.lower()}s"), owner.name, settings.namespace)
    if found is None:
        detail = f"there is no {owner.kind} {owner.name} that functions could belong to"
        raise UserError(detail, param="owner.name")
    return {
        "apiVersion": group,
        "kind": owner.kind,
        "name": owner.name,
        "uid": found["metadata"]["uid"],
    }
