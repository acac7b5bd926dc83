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
        self._num_prompts = 0

    def add(self, ids: Sequence[str]) -> tuple[list[list[int]], list[SampleTask]]:
        """Append samples; the prompts and tasks that are new to the call."""
        prompts: list[list[int]] = []
        tasks: list[SampleTask] = []
        for sample_id in ids:
            prompt = self._collector.samples[sample_id].prompt
            index = self._index.get(prompt) if self._dedup else None
            if index is None:
                index = self._index[prompt] = self._num_prompts
                self._num_prompts += 1
                prompts.append(list(prompt))
            tasks.append(self._collector.task(sample_id, index))
        self.ids += ids
        return prompts, tasks
