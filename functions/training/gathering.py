"""A learner's tensors, whole, of which each worker of a group holds a slice.

The leader asks for them one at a time, in whatever order, and says which (``Group.told``); the
followers help with each until it says -1. So nobody ever holds the whole model but for a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from functions.training.group import Group
from functions.training.learner import Learner, pack
from functions.training.shards import gather


def help_gathering(group: Group, learner: Learner) -> None:
    """What a follower does meanwhile."""
    tensors = [each for named in _labelled(learner).values() for each in named.values()]
    while (number := group.told(0)) >= 0:
        gather(tensors[number])


class Gathered:
    """``functions.training.crew.Tensors``, as the leader sees them."""

    def __init__(self, group: Group, learner: Learner) -> None:
        self.torn = False  # one was begun to be gathered and is not whole
        self._group = group
        self._numbers: dict[str, dict[str, int]] = {}
        self._tensors: list[Tensor] = []
        for label, tensors in _labelled(learner).items():
            first = len(self._tensors)
            self._numbers[label] = {name: first + i for i, name in enumerate(tensors)}
            self._tensors += tensors.values()

    @property
    def version(self) -> Mapping[str, Tensor]:
        return _OneByOne(self._numbers[""], self._whole)

    def checkpoint(self) -> dict[str, bytes]:
        return {
            label: pack({name: self._whole(number).cpu() for name, number in numbers.items()})
            for label, numbers in self._numbers.items()
            if label
        }

    def _whole(self, number: int) -> Tensor:
        self.torn = True
        self._group.told(number)
        whole = gather(self._tensors[number]).detach()
        self.torn = False
        return whole


class _OneByOne(Mapping[str, Tensor]):
    def __init__(self, numbers: Mapping[str, int], whole: Callable[[int], Tensor]) -> None:
        self._numbers = numbers
        self._whole = whole

    def __getitem__(self, name: str) -> Tensor:
        return self._whole(self._numbers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _labelled(learner: Learner) -> dict[str, dict[str, Tensor]]:
    """All tensors that may have to be made whole, in the same order on every worker: the version's
    under the empty label, and those of a checkpoint's attachments."""
    return {"": learner.policy.tensors(), **learner.state()}
