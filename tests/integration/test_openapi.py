"""Requests made up from the API's own document, to a service over real HTTP and a real Redis: none
may meet a defect, and every answer must be one that the document tells of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.served import served
from tests.support.service_api import SPEC, Api

pytestmark = pytest.mark.slow

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    ignored_auth,
]
EXAMPLES = 15


class Target:
    """``real``: ids of things that are there, by the name of their parameter."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._headers = url, {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}) as client:
            upload = {"file": ("data.jsonl", b'{"prompt": "x"}\n')}
            made = {
                "job": client.post("/v1/jobs", json=SPEC),
                "file": client.post("/v1/files", files=upload, data={"purpose": "dataset"}),
                "key_id": client.post("/v1/keys", json={"name": "made", "scope": "read"}),
            }
        self.real = {name: answer.json()["id"] for name, answer in made.items()} | {"step": "1"}

    def ask(self, case: Case) -> None:
        case.call_and_validate(base_url=self._url, headers=self._headers, checks=CHECKS)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("controller.service.guard.BURST", 10**9)
        patched.setenv("HF_HUB_OFFLINE", "1")
        with served(tmp_path_factory.mktemp("service"), allowed_urls=("http://reward",)) as service:
            _, key = service.do(lambda parts: parts.keys.create("acme", "test", "admin"))
            yield Target(service.url, key)


def operations() -> list[APIOperation[Any, Any, Any, Any]]:
    document = openapi.from_dict(Api().app.openapi())
    return [found.ok() for found in document.get_all_operations()]


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_every_answer_is_one_that_the_document_tells_of(
    operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, target: Target
) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        target.ask(case)
        if case.path_parameters:
            case.path_parameters = {**case.path_parameters, **target.real}
            target.ask(case)
        if operation.label in ("POST /v1/jobs", "POST /v1/estimates") and isinstance(
            case.body, dict
        ):
            case.body = {**case.body, **SPEC}  # whose references are good
            target.ask(case)

    if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
        pytest.skip("it has nothing that could be wrong")
    check()
