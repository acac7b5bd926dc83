"""What the controller may do in its namespace, asked of the API server by whoever looks.

A person's rights say nothing of the controller's: its service account is asked about, which takes
the right to ask about others (``localsubjectaccessreviews``). Who is that account, or looks at
settings without an owner, asks about themselves.
"""

from __future__ import annotations

from controller.platforms.knative_findings import Rule
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import DEPLOYMENTS, Kind, Kube, Object
from rlhfless.errors import ForbiddenError

_API = "apis/authorization.k8s.io/v1"
_OF_ONESELF = Kind(_API, "selfsubjectaccessreviews")
_OF_ANOTHER = Kind(_API, "localsubjectaccessreviews")
_WHO = Kind("apis/authentication.k8s.io/v1", "selfsubjectreviews")


async def allowed(
    kube: Kube, settings: KnativeSettings, rules: tuple[Rule, ...]
) -> dict[Rule, bool] | None:
    """By rule; None: who looks may not know."""
    try:
        account = await _account(kube, settings)
        return {rule: await _may(kube, settings.namespace, rule, account) for rule in rules}
    except ForbiddenError:
        return None


async def _account(kube: Kube, settings: KnativeSettings) -> str:
    """The controller's, by its name as a user; empty: it is whoever asks."""
    if settings.owner is None:
        return ""
    found = await kube.get(DEPLOYMENTS, settings.owner.name, settings.namespace)
    if found is None:
        return ""
    name = found["spec"]["template"]["spec"].get("serviceAccountName", "default")
    account = f"system:serviceaccount:{settings.namespace}:{name}"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    told = await kube.create(_WHO, review)
    asks = told.get("status", {}).get("userInfo", {}).get("username", "")
    return "" if asks == account else account


async def _may(kube: Kube, namespace: str, rule: Rule, account: str) -> bool:
    verb, group, named = rule
    resource, _, subresource = named.partition("/")
    wanted = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    if subresource:
        wanted["subresource"] = subresource
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": wanted},
    }
    if account:
        groups = ["serviceaccounts", f"serviceaccounts:{namespace}", "authenticated"]
        review |= {"kind": "LocalSubjectAccessReview", "metadata": {"namespace": namespace}}
        review["spec"] |= {"user": account, "groups": [f"system:{group}" for group in groups]}
        answer = await kube.create(_OF_ANOTHER, review, namespace)
    else:
        answer = await kube.create(_OF_ONESELF, review)
    return bool(answer.get("status", {}).get("allowed"))
