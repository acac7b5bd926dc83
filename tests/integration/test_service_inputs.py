"""Rewards of a tenant's own tried over the API by the real reward function."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, refused, with_api
from tests.support.runs import ROOT

pytestmark = pytest.mark.slow

CODE = {
    "rewards.py": b"import helper\ndef short(completions, **_):\n"
    b"    return [helper.score(c) for c in completions]\n",
    "helper.py": b"def score(text):\n    assert text != 'bad', 'as asked'\n"
    b"    return 1 / len(text)\n",
}
ROWS = b'{"prompt": "a1?", "answer": "a=4"}\n' * 3


def tar(files: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"code/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return whole.getvalue()


def test_rewards_that_were_uploaded_score_rows_that_were_uploaded(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        ids = []
        for name, content, purpose in (
            ("rows.jsonl", ROWS, "dataset"),
            ("code.tar.gz", tar(CODE), "reward"),
        ):
            form = {"files": {"file": (name, content)}, "data": {"purpose": purpose}}
            ids.append((await user.post("/v1/files", **form)).json()["id"])
        job = {
            "model": {"path": "library:quickstart/model"},
            "dataset": {"path": ids[0]},
            "rewards": [
                {"python": f"{ids[1]}/rewards.py:short"},
                {"python": "library:quickstart/rewards.py:exact_match", "weight": 2.0},
            ],
        }
        body: dict[str, Any] = {"job": job, "rows": 2, "completion": "a=4"}
        found = await user.post("/v1/rewards/check", json=body, timeout=120)
        assert found.status_code == 200, found.text
        for row in found.json()["data"]:
            assert row["prompt"] == "a1?"
            assert row["completion"] == "a=4"
            assert row["rewards"] == {"short": pytest.approx(1 / 3), "exact_match": 1.0}
        sampled = await user.post(
            "/v1/rewards/check", json=body | {"completion": None}, timeout=120
        )
        assert sampled.status_code == 200, sampled.text
        assert len(sampled.json()["data"]) == 2
        bad = await user.post("/v1/rewards/check", json=body | {"completion": "bad"}, timeout=120)
        problem = refused(bad, 422)
        assert problem["param"] == "job.rewards.0"
        assert "AssertionError: as asked" in problem["detail"]
        assert 'File "code/rewards.py"' in problem["detail"]
        for path in (str(tmp_path), ROOT, "/usr", "/root"):
            assert str(path) not in str(problem)

    with_api(tmp_path, test, library=str(Path(ROOT) / "examples"))
