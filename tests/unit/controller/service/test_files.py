"""Uploads, downloads and what becomes of them, over the API."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.service import draft as drafting
from controller.service.draft import Draft
from controller.service.files import clean_name
from controller.service.routes import files as routes
from rlhfless.errors import TransientError
from tests.support.api import Api, refused, with_api

ROWS = b'{"prompt": "a"}\n' * 100


def part(
    content: bytes = ROWS, name: str = "rows.jsonl", purpose: str = "dataset"
) -> dict[str, Any]:
    return {"files": {"file": (name, content)}, "data": {"purpose": purpose}}


def left(folder: Path) -> list[str]:
    """What lies in the replica's folder of drafts and in the store."""
    found = [*(folder / "replica").rglob("*"), *(folder / "store" / "files").rglob("*")]
    return sorted(path.name for path in found if path.is_file())


def test_a_file_is_uploaded_seen_and_deleted(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        made = await user.post("/v1/files", **part())
        assert made.status_code == 201, made.text
        file = made.json()
        assert file | {"id": "", "created_at": 0} == {
            "id": "",
            "object": "file",
            "created_at": 0,
            "filename": "rows.jsonl",
            "purpose": "dataset",
            "bytes": len(ROWS),
            "sha256": hashlib.sha256(ROWS).hexdigest(),
        }
        assert made.headers["location"] == f"/v1/files/{file['id']}"
        assert (await user.get(made.headers["location"])).json() == file
        assert (await user.get("/v1/files")).json()["data"] == [file]
        content = await user.get(f"/v1/files/{file['id']}/content")
        assert content.content == ROWS
        assert content.headers["x-content-type-options"] == "nosniff"
        assert "attachment" in content.headers["content-disposition"]
        assert left(tmp_path) == [file["id"]]
        assert (await user.delete(f"/v1/files/{file['id']}")).json() == file
        assert left(tmp_path) == []
        for path in ("", "/content"):
            refused(await user.get(f"/v1/files/{file['id']}{path}"), 404)
        refused(await user.delete(f"/v1/files/{file['id']}"), 404)
        assert (await user.get("/v1/files")).json()["data"] == []

    with_api(tmp_path, test)


def test_the_same_file_is_kept_once(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user, other = await api.user("acme"), await api.user("rival")
        answers = await asyncio.gather(*(user.post("/v1/files", **part()) for _ in range(5)))
        first = answers[0].json()
        assert [answer.json() for answer in answers] == [first] * 5
        ids = {first["id"]}
        for options in (part(name="b.jsonl"), part(purpose="model"), part(ROWS[1:])):
            ids.add((await user.post("/v1/files", **options)).json()["id"])
        theirs = (await other.post("/v1/files", **part())).json()
        ids.add(theirs["id"])
        assert len(ids) == 5
        assert set(left(tmp_path)) == ids
        # Gone, it can come again.
        await user.delete(f"/v1/files/{first['id']}")
        again = (await user.post("/v1/files", **part())).json()
        assert again["id"] not in ids
        assert (await other.get(f"/v1/files/{theirs['id']}/content")).content == ROWS

    with_api(tmp_path, test)


def test_another_tenants_file_is_not_there(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        owner, other = await api.user("acme", "admin"), await api.user("rival", "admin")
        file = (await owner.post("/v1/files", **part())).json()["id"]
        nobodys = "file-" + "0" * 24
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            theirs = refused(await other.request(method, f"/v1/files/{file}{path}"), 404)
            absent = refused(await other.request(method, f"/v1/files/{nobodys}{path}"), 404)
            assert str(theirs).replace(file, nobodys) == str(absent)
        assert (await other.get("/v1/files")).json()["data"] == []
        assert (await owner.get(f"/v1/files/{file}")).status_code == 200
        reader = await api.user("acme", "read")
        refused(await reader.delete(f"/v1/files/{file}"), 403)
        refused(await reader.post("/v1/files", **part()), 403)
        assert (await reader.get(f"/v1/files/{file}/content")).content == ROWS

    with_api(tmp_path, test)


def test_files_come_in_pages(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        made = [
            (await user.post("/v1/files", **part(name=f"{number}.jsonl"))).json()["id"]
            for number in range(5)
        ]
        first = (await user.get("/v1/files", params={"limit": 3})).json()
        after = {"after": first["data"][-1]["id"]}
        rest = (await user.get("/v1/files", params=after)).json()
        assert [first["has_more"], rest["has_more"]] == [True, False]
        ids = [file["id"] for file in first["data"] + rest["data"]]
        assert ids == sorted(made, reverse=True)
        refused(await user.get("/v1/files", params={"after": "x"}), 404)

    with_api(tmp_path, test)


def job(**paths: Any) -> dict[str, Any]:
    whole = {
        "model": {"path": "org/model"},
        "dataset": {"path": "org/data"},
        "rewards": [{"http": "http://reward"}],
    }
    return whole | paths


def test_a_file_stays_while_a_job_needs_it(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        rows = (await user.post("/v1/files", **part())).json()["id"]
        code = await user.post("/v1/files", **part(b"def f(): ...", "r.py", "reward"))
        both = job(dataset={"path": rows}, rewards=[{"python": f"{code.json()['id']}:f"}])
        made = (await user.post("/v1/jobs", json=both)).json()
        for file in (rows, code.json()["id"]):
            problem = refused(await user.delete(f"/v1/files/{file}"), 409)
            assert made["id"] in problem["detail"]
        await user.post(f"/v1/jobs/{made['id']}/cancel")
        assert (await user.delete(f"/v1/files/{rows}")).status_code == 200

    with_api(tmp_path, test, allowed_urls=("http://reward",))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"dataset": {"path": "{code}"}}, "dataset.path"),
        ({"dataset": {"path": "file-" + "0" * 24}}, "dataset.path"),
        ({"dataset": {"path": "{theirs}"}}, "dataset.path"),
        ({"dataset": {"path": "{odd}"}}, "dataset.path"),
        ({"dataset": {"path": "/etc/passwd"}}, "dataset.path"),
        ({"dataset": {"path": "http://127.0.0.1/x.jsonl"}}, "dataset.path"),
        ({"evaluation": {"dataset": {"path": "library:nothing"}}}, "evaluation.dataset.path"),
        ({"model": {"path": "{rows}"}}, "model.path"),
        ({"model": {"path": "library:../x"}}, "model.path"),
        ({"model": {"path": f"checkpoint:job-{'0' * 28}/1"}}, "model.path"),
        ({"rewards": [{"python": "{rows}:f"}]}, "rewards.0.python"),
        ({"rewards": [{"python": "{code}/x.py:f"}]}, "rewards.0.python"),
        ({"rewards": [{"python": "library:x.txt:f"}]}, "rewards.0.python"),
        ({"rewards": [{"model": "{rows}"}]}, "rewards.0.model"),
        ({"rewards": [{"http": "http://169.254.169.254/latest"}]}, "rewards.0.http"),
        ({"rewards": [{"http": "file:///etc/passwd"}]}, "rewards.0.http"),
        ({"webhooks": [{"url": "http://[::1]/"}]}, "webhooks.0.url"),
    ],
)
def test_a_job_names_only_what_it_may_use(
    tmp_path: Path, change: dict[str, Any], param: str
) -> None:
    async def test(api: Api) -> None:
        user, other = await api.user("acme"), await api.user("rival")
        names = {
            "rows": await user.post("/v1/files", **part()),
            "code": await user.post("/v1/files", **part(b"f = len", "r.py", "reward")),
            "odd": await user.post("/v1/files", **part(name="rows")),
            "theirs": await other.post("/v1/files", **part()),
        }
        body = json.dumps(job(**change))
        for name, answer in names.items():
            body = body.replace(f"{{{name}}}", answer.json()["id"])
        problem = refused(await user.post("/v1/jobs", json=json.loads(body)), refusal(body))
        assert problem["param"] == param
        assert str(tmp_path) not in str(problem)
        assert (await user.get("/v1/jobs")).json()["data"] == []

    def refusal(body: str) -> int:
        return 404 if problem_is_absence(body) else 422

    def problem_is_absence(body: str) -> bool:
        absent = ("file-" + "0" * 24, "library:nothing", "checkpoint:")
        return change == {"dataset": {"path": "{theirs}"}} or any(name in body for name in absent)

    with_api(tmp_path, test, library=str(tmp_path), allowed_urls=("http://reward",))


def multipart(*parts: bytes, end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n" + each + b"\r\n" for each in parts) + end


FILE = b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}'
PURPOSE = b'Content-Disposition: form-data; name="purpose"\r\n\r\ndataset'
FORM = "multipart/form-data; boundary=B"


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        (FORM, multipart(PURPOSE, FILE), 201),
        (FORM, multipart(FILE, PURPOSE), 201),
        (FORM, multipart(FILE, PURPOSE) + b"epilogue", 201),
        (FORM, multipart(FILE), 422),
        (FORM, multipart(PURPOSE), 422),
        (FORM, multipart(FILE, FILE, PURPOSE), 422),
        (FORM, multipart(FILE, PURPOSE, PURPOSE), 422),
        (FORM, multipart(FILE, PURPOSE.replace(b"dataset", b"other")), 422),
        (FORM, multipart(FILE, PURPOSE.replace(b"dataset", b"x" * 5000)), 422),
        (FORM, multipart(FILE, PURPOSE, PURPOSE.replace(b'"purpose"', b'"more"')), 422),
        (FORM, multipart(FILE, PURPOSE.replace(b'; name="purpose"', b"")), 422),
        (FORM, multipart(FILE, PURPOSE, end=b""), 422),
        (FORM, multipart(FILE, PURPOSE, end=b"--B"), 422),
        (FORM, multipart(*[FILE] * 20), 422),
        (FORM, multipart(b"no header", PURPOSE), 422),
        (FORM, multipart(b"X: " + b"y" * 9000 + b"\r\n\r\nx", PURPOSE), 422),
        (FORM, b"", 422),
        (FORM, b"nonsense", 422),
        ("multipart/form-data", multipart(FILE, PURPOSE), 422),
        ("multipart/form-data; boundary=", multipart(FILE, PURPOSE), 422),
        ("multipart/form-data; boundary=" + "x" * 5000, multipart(FILE, PURPOSE), 422),
        ("application/x-www-form-urlencoded", b"file=x&purpose=dataset", 422),
        ("text/plain", b"x", 422),
        ("", b"x", 422),
        ("application/json", b"{", 422),
        ("application/json", b"{}", 422),
        ("application/json", b'{"url": "https://x.example/", "purpose": "other"}', 422),
        ("application/json", b'{"url": "http://127.0.0.1/", "purpose": "dataset"}', 422),
        ("application/json", b'{"url": "file:///etc/passwd", "purpose": "dataset"}', 422),
        ("application/json", b'{"url": "/etc/passwd", "purpose": "dataset"}', 422),
    ],
)
def test_a_malformed_upload_leaves_nothing(
    tmp_path: Path, kind: str, body: bytes, status: int
) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        for stream in (body, in_pieces(body)):
            answer = await user.post("/v1/files", content=stream, headers={"content-type": kind})
            if status == 201:
                assert answer.status_code == 201, answer.text
            else:
                refused(answer, status)
                assert left(tmp_path) == []

    with_api(tmp_path, test)


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Without a content length, cut everywhere."""
    for byte in range(0, len(body), 7):
        yield body[byte : byte + 7]


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_is_too_large_leaves_nothing(tmp_path: Path, whole: bool) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        head = multipart(PURPOSE, FILE + b"x" * 1000 * 1000)
        headers = {"content-type": FORM}
        body = head if whole else in_pieces(head)
        refused(await user.post("/v1/files", content=body, headers=headers), 413)
        assert left(tmp_path) == []
        assert (await user.get("/v1/files")).json()["data"] == []

    with_api(tmp_path, test, max_file_bytes=1000, max_body_bytes=5000)


def test_a_tenants_files_have_a_bound(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user, other = await api.user("acme"), await api.user("rival")
        first = (await user.post("/v1/files", **part())).json()["id"]
        problem = refused(await user.post("/v1/files", **part(name="b.jsonl")), 413)
        assert "delete files" in problem["hint"]
        assert left(tmp_path) == [first]
        assert (await other.post("/v1/files", **part())).status_code == 201
        await user.delete(f"/v1/files/{first}")
        assert (await user.post("/v1/files", **part(name="b.jsonl"))).status_code == 201

    with_api(tmp_path, test, max_tenant_bytes=len(ROWS) * 3 // 2)


def test_a_sender_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        key = (await api.parts.keys.create("acme", "test", "submit"))[1]
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", FORM.encode())]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/files",
            "raw_path": b"/v1/files",
            "query_string": b"",
            "headers": headers,
            "client": ("1.2.3.4", 5),
            "server": ("service", 80),
            "scheme": "http",
            "root_path": "",
            "http_version": "1.1",
            "asgi": {"version": "3.0"},
        }
        coming = [
            {"type": "http.request", "body": multipart(FILE, end=b""), "more_body": True},
            {"type": "http.disconnect"},
        ]
        seen: list[list[str]] = []

        async def receive() -> Any:
            seen.append(left(tmp_path))
            return coming.pop(0)

        async def send(_: Any) -> None:
            pass

        await api.app(scope, receive, send)
        assert seen[-1]  # there was something to leave
        assert left(tmp_path) == []

    with_api(tmp_path, test)


def test_as_many_uploads_as_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_UPLOADS", 1)
    going, more = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        whole = multipart(FILE, PURPOSE)
        yield whole[:20]
        going.set()
        await more.wait()
        yield whole[20:]

    async def test(api: Api) -> None:
        user = await api.user()
        headers = {"content-type": FORM}
        first = asyncio.create_task(user.post("/v1/files", content=slow(), headers=headers))
        await going.wait()
        assert refused(await user.post("/v1/files", **part()), 503)["category"] == "capacity"
        more.set()
        assert (await first).status_code == 201
        assert (await user.post("/v1/files", **part())).status_code == 201

    with_api(tmp_path, test)


def test_a_file_is_fetched_from_a_url_once_for_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def fetch(url: str, write: Any, **_: Any) -> None:
        asked.append(url)
        if len(asked) == 1:
            raise TransientError("not now")
        write(ROWS + bytes(len(asked)))

    async def test(api: Api) -> None:
        user = await api.user()
        body = {"url": "https://x.example/a/rows%20b.jsonl?x=1", "purpose": "dataset"}
        headers = {"Idempotency-Key": "k"}
        refused(await user.post("/v1/files", json=body, headers=headers), 503)
        answers = [await user.post("/v1/files", json=body, headers=headers) for _ in range(3)]
        assert [answer.json() for answer in answers] == [answers[0].json()] * 3
        assert answers[0].json()["filename"] == "rows b.jsonl"
        assert len(asked) == 2
        other = await user.post("/v1/files", json=body | {"filename": "c"}, headers=headers)
        refused(other, 409)
        assert left(tmp_path) == [answers[0].json()["id"]]

    monkeypatch.setattr(routes, "fetch", fetch)
    with_api(tmp_path, test)


def test_an_upload_repeated_with_its_key_is_compared_by_content(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        headers = {"Idempotency-Key": "k"}
        first = await user.post("/v1/files", **part(), headers=headers)
        again = await user.post("/v1/files", **part(), headers=headers)
        assert again.json() == first.json()
        assert again.headers["location"] == first.headers["location"]
        refused(await user.post("/v1/files", **part(ROWS[1:]), headers=headers), 409)

    with_api(tmp_path, test)


def test_what_nobody_knows_of_is_swept_up(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        kept = (await user.post("/v1/files", **part())).json()["id"]
        for name in ("file-dead", "file-young"):
            api.parts.objects.put(f"files/acme/{name}", b"x")
        for name in (kept, "file-dead"):
            os.utime(tmp_path / "store" / "files" / "acme" / name, (1, 1))
        assert await api.parts.files.sweep() == 1
        assert left(tmp_path) == sorted([kept, "file-young"])

    with_api(tmp_path, test)


def test_drafts_of_who_died_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, other = tmp_path / "draft-dead", tmp_path / "other"
    for path in (dead, other, tmp_path / "draft-young"):
        path.write_bytes(b"x")
    for path in (dead, other):
        os.utime(path, (1, 1))
    with Draft(str(tmp_path), 10) as draft:
        draft.write(b"abc")
        assert os.path.getsize(draft.path) == 3
    assert sorted(os.listdir(tmp_path)) == ["draft-young", "other"]
    assert drafting._DEAD_AFTER_S > 600


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("rows.jsonl", "rows.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\rows.jsonl", "rows.jsonl"),
        ("/", "file"),
        ("..", "file"),
        (". . ", "file"),
        ("", "file"),
        ("a\0b\r\nc\u202e.jsonl", "abc.jsonl"),
        ("\u00fc b.jsonl", "\u00fc b.jsonl"),
        ("x" * 300 + ".jsonl", "x" * 194 + ".jsonl"),
    ],
)
def test_names_are_labels(given: str, shown: str) -> None:
    assert clean_name(given) == shown


def test_a_name_does_not_break_out_of_the_answers_header(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user = await api.user()
        name = 'x";evil="1\u00fc.jsonl'
        made = await user.post("/v1/files", **part(name=name))
        content: httpx.Response = await user.get(f"{made.headers['location']}/content")
        assert content.headers["content-disposition"].isascii()
        assert '"' not in content.headers["content-disposition"]

    with_api(tmp_path, test)
