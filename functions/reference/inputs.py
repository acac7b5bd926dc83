"""The sequences of a request: whether a model can take them, and which share a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functions.packing import Sequences
from rlhfless.errors import UserError


def sequences_of(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Sequences:
    """The sequences ready for passes; those of equal prompts form a group."""
    lengths = np.array([len(response) for response in responses], np.int64)
    numbers: dict[tuple[int, ...], int] = {}
    groups = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
    return Sequences(
        prompts=[np.array(prompt, np.int32) for prompt in prompts],
        responses=[np.array(response, np.int32) for response in responses],
        starts=np.cumsum(lengths) - lengths,
        groups=np.array(groups, np.int32),
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
