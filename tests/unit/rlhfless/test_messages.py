"""The wire contract, held still: a change of any message shows up here as a change of a file."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlhfless import messages
from rlhfless.messages import ROUTES, TERMINAL, AnyFrame, Frame, Request

GOLDEN = Path(__file__).parent / "wire_schema.json"


def schema() -> dict[str, Any]:
    _, components = msgspec.json.schema_components([*Request.__args__, AnyFrame])
    for component in components.values():
        component.pop("description", None)
    return dict(sorted(components.items()))


def test_the_wire_schema_is_the_committed_one() -> None:
    """To change it on purpose: ``python -m tests.unit.rlhfless.test_messages``, and keep in mind
    that controllers and functions of neighbouring releases talk to each other."""
    assert schema() == json.loads(GOLDEN.read_text())


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    newer = msgspec.msgpack.encode({"type": "Heartbeat", "busy_s": 1.0, "colour": "red"})
    assert msgspec.msgpack.decode(newer, type=AnyFrame) == messages.Heartbeat(busy_s=1.0)


@pytest.mark.parametrize("kind", Frame.__subclasses__())
def test_every_frame_is_in_the_union_and_tagged_by_its_name(kind: type[Frame]) -> None:
    assert kind in AnyFrame.__args__
    assert kind.__struct_config__.tag == kind.__name__


def test_every_request_has_a_route_and_terminal_frames_are_frames() -> None:
    assert set(ROUTES) == set(Request.__args__)
    assert all(issubclass(kind, Frame) for kind in TERMINAL)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(schema(), indent=1) + "\n")
