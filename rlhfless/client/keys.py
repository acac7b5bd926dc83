"""``client.keys``: the keys of one's own tenant. All need a key of the scope admin."""

from __future__ import annotations

from rlhfless import rest
from rlhfless.client.flows import Flow, Items
from rlhfless.client.methods import Driver, Methods, answers, yields
from rlhfless.client.requests import delete, pages, path, post


class Keys(Methods[Driver]):
    @answers
    def create(self, name: str, scope: rest.Scope = "submit") -> Flow[rest.Key]:
        """A new key; its text, ``key``, is in this answer and never again."""
        return post(rest.Key, path("keys"), {"name": name, "scope": scope})

    @yields
    def list(self) -> Items[rest.Key]:
        return pages(rest.Key, path("keys"))

    @answers
    def revoke(self, key: rest.Key | str) -> Flow[None]:
        """From now on nobody is let in with it."""
        return delete(path("keys", key.id if isinstance(key, rest.Key) else key))
