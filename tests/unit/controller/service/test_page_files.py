"""The page's files: how they are served, and rules that all of them keep."""

import fnmatch
import os
import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from controller.service.routes.page import FOLDER
from tests.support.api import Api, refused, with_api

ROOT = Path(__file__).parents[4]
FILES = sorted(path for path in Path(FOLDER).rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|Function\("
)


def name(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


def with_visitor(folder: Path, test: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main(api: Api) -> None:
        user = await api.user()
        del user.headers["Authorization"]  # the page asks for a key; it needs none itself
        await test(user)

    with_api(folder, main)


def test_every_file_is_served_with_strict_headers(tmp_path: Path) -> None:
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/"}

    async def test(visitor: httpx.AsyncClient) -> None:
        for path in ["/", *(f"/page/{name(file)}" for file in FILES)]:
            answer = await visitor.get(path)
            assert answer.status_code == 200
            ending = os.path.splitext(path)[1] or ".html"
            assert answer.headers["content-type"].startswith(types[ending])
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"

    with_visitor(tmp_path, test)


def test_a_file_that_the_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    async def test(visitor: httpx.AsyncClient) -> None:
        first = await visitor.get("/page/main.js")
        again = await visitor.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await visitor.get("/page/main.js", headers={"If-None-Match": '"other"'})
        assert other.content == first.content

    with_visitor(tmp_path, test)


@pytest.mark.parametrize(
    "path", ["", "..%2fapp.py", "../app.py", "%2e%2e/app.py", "job", "main.js/", "/etc/passwd"]
)
def test_nothing_else_is_served(tmp_path: Path, path: str) -> None:
    async def test(visitor: httpx.AsyncClient) -> None:
        refused(await visitor.get(f"/page/{path}"), 404)

    with_visitor(tmp_path, test)


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_a_script_makes_no_markup_of_text_and_asks_nobody_else(path: Path) -> None:
    text = path.read_text()
    assert not MARKUP.search(text)
    addresses = re.findall(r"https?://\w[^\s\"'`]+", text)
    assert all(address == "http://www.w3.org/2000/svg" for address in addresses)


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_what_a_script_imports_is_there_and_used(path: Path) -> None:
    text = path.read_text()
    for names, target in re.findall(r"import \{([^}]*)\} from \"([^\"]+)\";", text):
        exported = (path.parent / target).resolve().read_text()
        for each in filter(None, map(str.strip, names.split(","))):
            assert re.search(rf"export (async )?(function\*?|class|const) {each}\b", exported), each
            assert len(re.findall(rf"\b{each}\b", text)) > 1, f"{each} is not used"


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_what_a_script_exports_is_imported_somewhere(path: Path) -> None:
    others = "".join(other.read_text() for other in SCRIPTS if other != path)
    for each in re.findall(
        r"export (?:async )?(?:function\*?|class|const) (\w+)", path.read_text()
    ):
        assert re.search(rf"\b{each}\b", others), f"{each} is exported for nobody"


def test_markup_has_no_script_or_style_of_its_own() -> None:
    text = (Path(FOLDER) / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text)


def test_all_files_are_part_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["controller.service"]
    for path in FILES:
        relative = f"page/{name(path)}"
        depth = relative.count("/")
        assert any(
            fnmatch.fnmatch(relative, each) and each.count("/") == depth for each in patterns
        ), relative
