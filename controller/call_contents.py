"""What a rollout call holds: prompts and samples, in the order that gives them their indices."""

from __future__ import annotations

from collections.abc import Sequence

from controller.collector import Collector
from rlhfless.messages import SampleTask


class CallContents:
    """Grows while the call runs. ``dedup``: samples of one prompt share its entry, so it is
    prefilled once; otherwise every sample brings its own."""

    def __init__(self, collector: Collector, *, dedup: bool = True) -> None:
        self.ids: list[str] = []
        self._collector = collector
        self._dedup = dedup
        self._index: dict[tuple[int, ...], int] = {}
        self._index_of_group: dict[int, int] = {}
        self._num_prompts = 0

    def add(self, ids: Sequence[str]) -> tuple[list[list[int]], list[SampleTask]]:
        """Append samples; the prompts and tasks that are new to the call."""
        prompts: list[list[int]] = []
        tasks: list[SampleTask] = []
        for sample_id in ids:
            sample = self._collector.samples[sample_id]
            # By group first: a long prompt takes microseconds to hash.
            index = self._index_of_group.get(sample.group) if self._dedup else None
            if index is None and self._dedup:
                index = self._index.get(sample.prompt)
            if index is None:
                index = self._index[sample.prompt] = self._num_prompts
                self._num_prompts += 1
                prompts.append(list(sample.prompt))
            self._index_of_group[sample.group] = index
            tasks.append(self._collector.task(sample_id, index))
        self.ids += ids
        return prompts, tasks
