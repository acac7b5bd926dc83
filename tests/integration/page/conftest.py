"""A browser, a real service whose jobs nobody drives, and tabs that must not complain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller.service.service import Service
from controller.service.states import State
from rlhfless.spec import JobSpec
from tests.support.browser import Watched, chromium
from tests.support.page_answers import Open
from tests.support.served import Served, served

SPEC: dict[str, Any] = {
    "name": "copying",
    "model": {"path": "org/model"},
    "dataset": {"path": "org/data"},
    "rewards": [{"http": "https://example.com/reward"}],
    "training": {"steps": 30},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "library/quickstart/model").mkdir(parents=True)
    (folder / "library/quickstart/model/config.json").write_text("{}")
    with served(folder, library=str(folder / "library")) as started:
        yield started


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """One a test: no test sees another's jobs."""
    return re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].strip("-")


@pytest.fixture
def key(service: Served, tenant: str) -> str:
    return service.do(lambda parts: parts.keys.create(tenant, "page", "admin"))[1]


@pytest.fixture
def opened(browser: Any, service: Served, key: str) -> Iterator[Open]:
    """Opens tabs that are signed in, and sees at the end that none complained."""
    tabs: list[Watched] = []

    def make(*, signed_in: bool = True, **options: Any) -> Watched:
        tabs.append(Watched(browser, service.url, **options))
        if signed_in:
            tabs[-1].sign_in(key)
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.close()


@pytest.fixture
def make_job(service: Served, tenant: str) -> Callable[..., str]:
    """Makes a job that is brought into states; answers its id."""

    def make(*states: State, **fields: Any) -> str:
        async def create(parts: Service) -> str:
            values = JobSpec.model_validate(SPEC | fields).model_dump(mode="json")
            made = await parts.registry.create(tenant, values)
            for state in states:
                await parts.registry.move(tenant, made.id, state)
            return made.id

        return service.do(create)

    return make
