"""TensorBoard: event files in the run's folder, written by tensorboardX.

A step is one record of the file, so that it is there as a whole or not at all. What a folder has
already is read from its files; a resumed run begins another file beside them.
"""

from __future__ import annotations

import glob
import os
import struct
import uuid
from collections.abc import Iterator

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from controller.integrations.tracker import Entry, Logged, RunConfig, Status

_LENGTH = struct.Struct("<Q")
_CRC_BYTES = 4
EVALUATION = "eval/"


class TensorBoard:
    """See ``Tracker``."""

    def begin(self, config: RunConfig) -> Logged:
        os.makedirs(config.folder, exist_ok=True)
        logged = logged_in(config.folder)
        # A name of its own: two files of one second would otherwise be one.
        name = f".{uuid.uuid4().hex[:8]}"
        self._writer = EventsWriter(os.path.join(config.folder, "events"), filename_suffix=name)
        return logged

    def log(self, entry: Entry) -> None:
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in entry.metrics.items()
            if name != "step"  # the axis
        ]
        event = Event(step=entry.step, wall_time=entry.at, summary=Summary(value=values))
        self._writer.write_event(event)
        self._writer.flush()

    def close(self, status: Status) -> None:  # noqa: ARG002  (it keeps no status)
        self._writer.close()


def logged_in(folder: str) -> Logged:
    """The last step and evaluation in a folder's event files."""
    logged = Logged()
    for path in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")):
        for event in read_events(path):
            if event.summary.value:
                evaluation = all(v.tag.startswith(EVALUATION) for v in event.summary.value)
                logged = logged.after(
                    Entry(step=event.step, evaluation=evaluation, at=event.wall_time, metrics={})
                )
    return logged


def read_events(path: str) -> Iterator[Event]:
    """The records of an event file, up to one that a killed writer left unfinished: length (8
    bytes), its checksum (4), the event, its checksum (4)."""
    with open(path, "rb") as file:
        while len(head := file.read(_LENGTH.size + _CRC_BYTES)) == _LENGTH.size + _CRC_BYTES:
            (num_bytes,) = _LENGTH.unpack_from(head)
            record = file.read(num_bytes + _CRC_BYTES)
            if len(record) < num_bytes + _CRC_BYTES:
                return
            yield Event.FromString(record[:num_bytes])
