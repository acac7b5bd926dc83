"""How a minibatch becomes forward passes: which sequences go together, and as which arrays.

A packed pass is one row: for each group of samples its prompt, once, and the responses behind it,
back to back. The last token of a response predicts nothing that is needed and is left out. A model
that cannot do this gets plain passes: one padded row a sample. Neither changes a result beyond
rounding: the same tokens see the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.packed_attention import Block, Blocks
from rlhfless.batches import Batch

Indices = NDArray[np.int64]

CPU_PASS_TOKENS = 2048
"""On a CPU more tokens a pass only spill out of the caches: measured on two AVX2 cores, a hidden
size of 128 is fastest at 1,000 to 2,000 tokens and 1.7 times slower at 8,000."""
_BLOCK_FILL = 0.6
"""A sequence shorter than this part of its block's longest begins a new attention block."""


@dataclass(frozen=True)
class Sequences:
    """The token sequences of a batch, ready to be laid out.

    ``prompts[i]`` and ``responses[i]`` are views of int32 arrays; response i is tokens
    ``starts[i] ..`` of the batch's response arrays ``[R]``; equal ``groups`` have equal prompts.
    """

    prompts: list[NDArray[np.int32]]
    responses: list[NDArray[np.int32]]
    starts: Indices
    groups: NDArray[np.int32]

    @classmethod
    def of(cls, batch: Batch) -> Sequences:
        prompt_ends = np.cumsum(batch.prompt_lengths, dtype=np.int64)
        ends = np.cumsum(batch.response_lengths, dtype=np.int64)
        return cls(
            prompts=np.split(batch.prompt_tokens, prompt_ends[:-1]),
            responses=np.split(batch.response_tokens, ends[:-1]),
            starts=ends - batch.response_lengths,
            groups=batch.groups,
        )


@dataclass(frozen=True)
class Pass:
    """One forward pass over ``samples``, with r response tokens, on the model's device.

    ``input_ids`` ``[B, T]``; ``positions`` and ``blocks`` only where packed (B is 1 then).
    ``predict`` ``[r]`` is the place in ``[B * T]`` whose output predicts a token, ``targets``
    ``[r]`` that token, ``where`` ``[r]`` its place in the batch's response arrays ``[R]``.

    Of several workers each has a pass of its own at the same time: ``together`` are the samples of
    all. One that has none left computes a token that counts for nothing (``idle``): r is 1, and
    there are no ``samples`` and no ``where``.
    """

    samples: tuple[int, ...]
    input_ids: Tensor
    predict: Tensor
    targets: Tensor
    where: Tensor
    positions: Tensor | None = None
    blocks: Blocks | None = None
    together: tuple[int, ...] = ()

    @property
    def idle(self) -> bool:
        return not self.samples


def plan(
    sequences: Sequences, samples: Indices, max_tokens: int, *, packed: bool
) -> list[list[int]]:
    """Split ``samples`` into passes of at most ``max_tokens`` tokens, padding included, the longest
    first; a sample that is longer goes alone. Where ``packed``, samples of a group stay together as
    far as they fit. Empty responses have nothing to compute and are left out.
    """
    lengths = {
        i: len(sequences.responses[i]) for i in samples.tolist() if len(sequences.responses[i])
    }
    longest: dict[int, int] = {}
    for i, length in lengths.items():
        group = int(sequences.groups[i])
        longest[group] = max(longest.get(group, 0), length)

    def place(i: int) -> tuple[int, ...]:
        group = int(sequences.groups[i])
        if packed:
            return (-longest[group], group, -lengths[i], i)
        return (-lengths[i] - len(sequences.prompts[i]), i)

    passes: list[list[int]] = []
    size = width = 0
    last_group = -1
    for i in sorted(lengths, key=place):
        prompt, group = len(sequences.prompts[i]), int(sequences.groups[i])
        if packed:
            size += lengths[i] - 1 + (prompt if group != last_group or not passes else 0)
        else:
            size += width
        if not passes or size > max_tokens:
            passes.append([])
            size = width = prompt + lengths[i] - 1
        passes[-1].append(i)
        last_group = group
    return passes


def lay_out(
    sequences: Sequences, samples: Sequence[int], device: torch.device, *, packed: bool
) -> Pass:
    """The pass over ``samples``; where ``packed``, those of a group must be neighbours."""
    return _packed(sequences, samples, device) if packed else _padded(sequences, samples, device)


def idle_pass(sequences: Sequences, device: torch.device, *, packed: bool) -> Pass:
    """The shortest that still uses every part of a model."""
    first = next(i for i, response in enumerate(sequences.responses) if len(response))
    token = Sequences(
        prompts=[sequences.prompts[first][:1]],
        responses=[sequences.responses[first][:1]],
        starts=np.zeros(1, np.int64),
        groups=np.zeros(1, np.int32),
    )
    part = lay_out(token, [0], device, packed=packed)
    return replace(part, samples=(), where=part.where[:0])


def _padded(sequences: Sequences, samples: Sequence[int], device: torch.device) -> Pass:
    sizes = [len(sequences.prompts[i]) + len(sequences.responses[i]) - 1 for i in samples]
    width = max(sizes)
    input_ids = np.zeros((len(samples), width), np.int64)
    predict = []
    for row, (i, size) in enumerate(zip(samples, sizes, strict=True)):
        prompt = len(sequences.prompts[i])
        input_ids[row, :prompt] = sequences.prompts[i]
        input_ids[row, prompt:size] = sequences.responses[i][:-1]
        predict.append(np.arange(prompt - 1, size) + row * width)
    targets, where = _answers(sequences, samples, device)
    return Pass(
        samples=tuple(samples),
        input_ids=torch.from_numpy(input_ids).to(device),
        predict=torch.from_numpy(np.concatenate(predict)).to(device),
        targets=targets,
        where=where,
    )


def _packed(sequences: Sequences, samples: Sequence[int], device: torch.device) -> Pass:
    tokens: list[NDArray[np.int32]] = []
    positions, predict = [], []
    prompts: list[Indices] = []  # places of each prompt in the row
    members: list[tuple[int, Indices]] = []  # of each response: its prompt's number, its places
    at, group = 0, None
    for i in samples:
        prompt, response = sequences.prompts[i], sequences.responses[i]
        if sequences.groups[i] != group:
            group = sequences.groups[i]
            prompts.append(np.arange(at, at + len(prompt)))
            tokens.append(prompt)
            positions.append(np.arange(len(prompt)))
            at += len(prompt)
        places = np.arange(at, at + len(response) - 1)
        members.append((len(prompts) - 1, places))
        tokens.append(response[:-1])
        positions.append(np.arange(len(prompt), len(prompt) + len(places)))
        predict += [prompts[-1][-1:], places]
        at += len(places)
    targets, where = _answers(sequences, samples, device)
    return Pass(
        samples=tuple(samples),
        input_ids=torch.from_numpy(np.concatenate(tokens).astype(np.int64))[None].to(device),
        positions=torch.from_numpy(np.concatenate(positions))[None].to(device),
        predict=torch.from_numpy(np.concatenate(predict)).to(device),
        blocks=_blocks(prompts, members, at, device),
        targets=targets,
        where=where,
    )


def _answers(
    sequences: Sequences, samples: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """``targets`` and ``where`` of a pass."""
    targets = np.concatenate([sequences.responses[i] for i in samples]).astype(np.int64)
    where = [np.arange(len(sequences.responses[i])) + sequences.starts[i] for i in samples]
    return torch.from_numpy(targets).to(device), torch.from_numpy(np.concatenate(where)).to(device)


def _blocks(
    prompts: Sequence[Indices],
    members: Sequence[tuple[int, Indices]],
    num_tokens: int,
    device: torch.device,
) -> Blocks:
    """Prompts see themselves; responses see their prompt and themselves; both causally."""
    queries = [(np.empty(0, np.int64), p) for p in prompts]  # (what lies before, own places)
    queries += [(prompts[number], places) for number, places in members if len(places)]
    queries.sort(key=lambda pair: (-len(pair[1]), -len(pair[0])))
    blocks: list[Block] = []
    places = np.empty(num_tokens, np.int64)
    first = offset = 0
    while first < len(queries):
        width = len(queries[first][1])
        last = first + 1
        while last < len(queries) and len(queries[last][1]) >= _BLOCK_FILL * width:
            last += 1
        part = queries[first:last]
        keys_width = max(len(before) + len(own) for before, own in part)
        query_places = np.zeros((len(part), width), np.int64)
        key_places = np.zeros((len(part), keys_width), np.int64)
        before_sizes = np.array([len(before) for before, _ in part])
        for row, (before, own) in enumerate(part):
            query_places[row, : len(own)] = own
            key_places[row, : len(before)] = before
            key_places[row, len(before) : len(before) + len(own)] = own
            places[own] = np.arange(len(own)) + offset + row * width
        seen = np.arange(keys_width) <= before_sizes[:, None, None] + np.arange(width)[:, None]
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))[:, None]
        blocks.append(
            Block(
                torch.from_numpy(query_places).to(device),
                torch.from_numpy(key_places).to(device),
                torch.from_numpy(mask).to(device),
            )
        )
        offset += len(part) * width
        first = last
    return Blocks(tuple(blocks), torch.from_numpy(places).to(device))
