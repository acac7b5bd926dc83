"""Cutting sequences into forward passes of bounded size.

A sequence is a prompt and a response. Sequences of like length go together, padded on the right:
under causal attention what stands behind a token never touches it, so no mask is needed and the
result does not depend on which sequences share a pass.

Shapes: B rows of T tokens in a pass; N response tokens of the pass, back to back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlhfless.errors import UserError


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass. ``samples`` index the caller's lists; ``lengths`` are their responses'.

    ``rows`` says where in the flattened ``[B * T]`` hidden states the predictor of each response
    token lies: the position before it. ``position_ids`` and ``attention_mask`` are None where the
    model's own (0, 1, ... and causal) are right.
    """

    samples: tuple[int, ...]
    lengths: tuple[int, ...]
    input_ids: torch.Tensor  # int64 [B, T]
    rows: torch.Tensor  # int64 [N]
    targets: torch.Tensor  # int64 [N]
    position_ids: torch.Tensor | None = None  # int64 [B, T]
    attention_mask: torch.Tensor | None = None  # bool [B, 1, T, T], True where attended

    @property
    def num_tokens(self) -> int:
        """Tokens of the pass, padding included."""
        return self.input_ids.numel()


def plan_microbatches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sequences by length so that each group, padded, has at most ``max_tokens`` tokens.

    Longest first; a sequence longer than the bound gets a pass of its own. Every index occurs once.
    """
    plan: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if plan and (len(plan[-1]) + 1) * width <= max_tokens:
            plan[-1].append(index)
        else:
            plan.append([index])
            width = lengths[index]
    return plan


def collate(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    samples: Sequence[int],
    device: torch.device | str = "cpu",
) -> MicroBatch:
    """The forward pass of the given samples. Prompts must not be empty."""
    width = max(len(prompts[i]) + len(responses[i]) for i in samples)
    input_ids = torch.zeros(len(samples), width, dtype=torch.int64)
    rows: list[torch.Tensor] = []
    targets: list[int] = []
    for row, i in enumerate(samples):
        start, end = len(prompts[i]), len(prompts[i]) + len(responses[i])
        input_ids[row, :end] = torch.tensor([*prompts[i], *responses[i]], dtype=torch.int64)
        rows.append(torch.arange(start - 1, end - 1) + row * width)
        targets.extend(responses[i])
    return MicroBatch(
        samples=tuple(samples),
        lengths=tuple(len(responses[i]) for i in samples),
        input_ids=input_ids.to(device),
        rows=torch.cat(rows).to(device),
        targets=torch.tensor(targets, dtype=torch.int64, device=device),
    )


def check_sequences(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    vocabulary: int,
    context: int | None,
) -> None:
    """Raise ``UserError`` for sequences that a model cannot take.

    ``context`` is the model's longest sequence in tokens, None where it has no such bound.
    """
    if len(prompts) != len(responses):
        raise UserError(f"{len(prompts)} prompts do not go with {len(responses)} responses")
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if not prompt:
            raise UserError(f"prompt {i} is empty: nothing predicts the first response token")
        length = len(prompt) + len(response)
        if context is not None and length > context:
            raise UserError(f"sequence {i} has {length} tokens; the model's context is {context}")
        tokens = (*prompt, *response)
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            raise UserError(
                f"sequence {i} has tokens outside the model's vocabulary of {vocabulary}",
                hint="the tokenizer and the model do not belong together",
            )
