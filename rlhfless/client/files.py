"""``client.files``: what jobs start from, uploaded."""

from __future__ import annotations

from rlhfless import rest
from rlhfless.client.flows import Flow, Items
from rlhfless.client.methods import Driver, Methods, answers, yields
from rlhfless.client.requests import delete, get, pages, path, post
from rlhfless.client.uploads import send


class Files(Methods[Driver]):
    """A job names a file by its id. ``client.jobs.submit`` uploads by itself what a job needs."""

    @answers
    def upload(self, source: str, purpose: rest.Purpose = "dataset") -> Flow[rest.File]:
        """Upload a file; a folder goes as a tar. The same content is kept once."""
        return send(source, purpose)

    @answers
    def fetch(
        self, url: str, purpose: rest.Purpose = "dataset", *, filename: str | None = None
    ) -> Flow[rest.File]:
        """Let the service fetch it from where it is."""
        body = {"url": url, "purpose": purpose, "filename": filename}
        return post(rest.File, path("files"), body)

    @yields
    def list(self) -> Items[rest.File]:
        """All files, newest first."""
        return pages(rest.File, path("files"))

    @answers
    def get(self, file: rest.File | str) -> Flow[rest.File]:
        return get(rest.File, path("files", _id(file)))

    @answers
    def delete(self, file: rest.File | str) -> Flow[None]:
        return delete(path("files", _id(file)))


def _id(file: rest.File | str) -> str:
    return file.id if isinstance(file, rest.File) else file
