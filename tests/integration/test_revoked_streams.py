"""A key that is revoked loses what it is watching, over real HTTP and a real Redis."""

from pathlib import Path

import httpx
import pytest

from tests.support.served import served
from tests.support.service_api import SPEC

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("what", ["events", "logs"])
def test_the_stream_of_a_revoked_key_ends(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"controller.service.routes.{what}.CHECK_KEY_S", 0.2)
    with served(tmp_path, allowed_urls=("http://reward",)) as service:
        key, text = service.do(lambda parts: parts.keys.create("acme", "watcher", "submit"))
        headers = {"Authorization": f"Bearer {text}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=60.0) as client:
            job = client.post("/v1/jobs", json=SPEC).json()["id"]
            accept = {"Accept": "text/event-stream"}
            with client.stream("GET", f"/v1/jobs/{job}/{what}", headers=accept) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("retry:")
                service.do(lambda parts: parts.keys.revoke("acme", key.id))
                assert not any("cancelled" in line for line in lines)  # it ends, the job has not
            again = client.get(f"/v1/jobs/{job}/{what}", headers=accept)
            assert again.status_code == 401
        _, other = service.do(lambda parts: parts.keys.create("acme", "other", "read"))
        headers = {"Authorization": f"Bearer {other}"}
        state = httpx.get(f"{service.url}/v1/jobs/{job}", headers=headers).json()["state"]
        assert state == "queued"
