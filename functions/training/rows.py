"""How a minibatch becomes the rows of micro-batches: which samples share a row, which rows a pass.

Samples of one prompt may share a row, ``prompt + response 1 + response 2 + ...``, under a mask by
which each response sees the prompt and itself; so the prompt is computed once, not once a sample.
The last token of a response predicts nothing that is needed and is left out. Rows are sorted by
length before they are put together, so little is padding. None of it changes a result beyond
rounding: the same tokens see the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from functions.lm_head import hidden_states
from functions.microbatches import MicroBatch
from rlhfless.batches import Batch

Indices = NDArray[np.int64]

CPU_MICROBATCH_TOKENS = 2048
"""On a CPU more tokens a pass only spill out of the caches: measured on two AVX2 cores, a hidden
size of 128 is fastest at 1,000 to 2,000 and 1.7 times slower at 8,000."""


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
class Row:
    """Samples (indices into the batch) that share their prompt; one sample is a plain row."""

    samples: tuple[int, ...]
    num_tokens: int


def plan(
    sequences: Sequences, samples: Indices, tokens_per_microbatch: int, *, hidden_size: int
) -> list[list[Row]]:
    """Split ``samples`` into micro-batches of rows, the longest first, each of at most
    ``tokens_per_microbatch`` padded tokens (a longer row goes alone). ``hidden_size`` 0: the model
    cannot share prompts. Empty responses have nothing to compute and are left out."""
    rows: list[Row] = []
    by_group: dict[int, list[int]] = {}
    for sample in samples.tolist():
        if len(sequences.responses[sample]):
            by_group.setdefault(int(sequences.groups[sample]), []).append(sample)
    for members in by_group.values():
        members.sort(key=lambda sample: (len(sequences.responses[sample]), sample))
        prompt = len(sequences.prompts[members[0]])
        lengths = [len(sequences.responses[sample]) - 1 for sample in members]
        share = best_share(prompt, sum(lengths) / len(lengths), len(members), hidden_size)
        for first in range(0, len(members), share):
            size = prompt + sum(lengths[first : first + share])
            rows.append(Row(tuple(members[first : first + share]), size))
    rows.sort(key=lambda row: (-row.num_tokens, row.samples))

    batches: list[list[Row]] = []
    for row in rows:
        widest = batches[-1][0].num_tokens if batches else 0
        if batches and (len(batches[-1]) + 1) * widest <= tokens_per_microbatch:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def best_share(prompt: int, response: float, siblings: int, hidden_size: int) -> int:
    """How many responses to one prompt should share a row, by operations per sample.

    Linear layers cost about ``24 h^2`` a token and layer, attention ``4 h`` a pair of tokens of
    the row (masked or not): sharing saves the one and adds to the other. For h = 128, a prompt of
    11 and responses of 27 the best is 3; for long prompts it is all of them.
    """
    if hidden_size == 0:
        return 1

    def cost(share: int) -> float:
        tokens = prompt + share * response
        return (24.0 * hidden_size * tokens + 4.0 * tokens * tokens) / share

    return min(range(1, siblings + 1), key=cost)


def lay_out(
    sequences: Sequences, rows: Sequence[Row], device: torch.device
) -> tuple[MicroBatch, torch.Tensor]:
    """The forward pass over ``rows``, and ``where`` ``[N]``: the place of each of its response
    tokens in the batch's response arrays ``[R]``."""
    width = max(row.num_tokens for row in rows)
    input_ids = np.zeros((len(rows), width), np.int64)
    positions = np.zeros((len(rows), width), np.int64)
    segments = np.full((len(rows), width), -1, np.int64)
    predict, targets, where = [], [], []
    for index, row in enumerate(rows):
        prompt = sequences.prompts[row.samples[0]]
        at = len(prompt)
        input_ids[index, :at] = prompt
        positions[index, :at] = np.arange(at)
        segments[index, :at] = 0
        for number, sample in enumerate(row.samples, start=1):
            response = sequences.responses[sample]
            end = at + len(response) - 1
            input_ids[index, at:end] = response[:-1]
            positions[index, at:end] = np.arange(len(prompt), len(prompt) + end - at)
            segments[index, at:end] = number
            offset = index * width
            predict += [np.array([offset + len(prompt) - 1]), np.arange(offset + at, offset + end)]
            targets.append(response)
            where.append(np.arange(len(response)) + sequences.starts[sample])
            at = end
    samples = tuple(sample for row in rows for sample in row.samples)
    shared = any(len(row.samples) > 1 for row in rows)
    return MicroBatch(
        samples=samples,
        lengths=tuple(len(sequences.responses[sample]) for sample in samples),
        input_ids=torch.from_numpy(input_ids).to(device),
        rows=torch.from_numpy(np.concatenate(predict)).to(device),
        targets=torch.from_numpy(np.concatenate(targets).astype(np.int64)).to(device),
        position_ids=torch.from_numpy(positions).to(device) if shared else None,
        attention_mask=attention_mask(torch.from_numpy(segments).to(device)) if shared else None,
    ), torch.from_numpy(np.concatenate(where)).to(device)


def attention_mask(segments: torch.Tensor) -> torch.Tensor:
    """bool ``[B, 1, T, T]`` from ``[B, T]``: 0 in a prompt, k in its k-th response, -1 in padding.

    A token sees earlier tokens of its own segment and of the prompt.
    """
    width = segments.shape[1]
    visible = segments[:, :, None] == segments[:, None, :]
    visible |= segments[:, None, :] == 0
    visible &= torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    return visible[:, None]


@torch.no_grad()
def can_share_prompts(backbone: Any, config: Any, device: torch.device) -> bool:
    """Whether a model computes the same for samples that share a row: full attention in every
    layer, positions and masks honoured. Tried on six tokens, since architectures differ in what
    they ignore."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return False
    sequences = Sequences(
        prompts=[np.array([1, 2], np.int32)] * 2,
        responses=[np.array([3, 1, 2], np.int32), np.array([2, 3, 1], np.int32)],
        starts=np.array([0, 3]),
        groups=np.zeros(2, np.int32),
    )
    apart, _ = lay_out(sequences, [Row((0,), 4), Row((1,), 4)], device)
    together, _ = lay_out(sequences, [Row((0, 1), 6)], device)
    try:
        shared = hidden_states(backbone, together)
    except (TypeError, ValueError, RuntimeError):  # takes no positions, or no mask of this shape
        return False
    return torch.allclose(hidden_states(backbone, apart), shared, rtol=1e-3, atol=1e-4)
