"""Whether a request can be served, and what of it is done already."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from functions.rollout.roster import Roster
from rlhfless.errors import UserError
from rlhfless.messages import Finished, FinishReason


def check_roster(roster: Roster, config: Any, first_prompt: int = 0, first_sample: int = 0) -> None:
    """Raises ``UserError`` naming the prompt or sample, of those from ``first_..`` on, that the
    model cannot take."""
    text = config.get_text_config()
    prompts = len(roster.prompts)
    if len(roster.cuts) != prompts:
        raise UserError(f"cuts of {len(roster.cuts)} prompts for {prompts}", param="cuts")
    for number in range(first_prompt, prompts):
        if not roster.prompts[number]:
            raise UserError(f"prompt {number} is empty", param=f"prompts[{number}]")
        _check_tokens(roster.prompts[number], text.vocab_size, f"prompts[{number}]")
        _check_cuts(roster.cuts[number], len(roster.prompts[number]), number)
    context = getattr(text, "max_position_embeddings", None)
    for number in range(first_sample, len(roster.samples)):
        sample = roster.samples[number]
        if not 0 <= sample.prompt < prompts:
            raise UserError(
                f"sample {sample.id} names prompt {sample.prompt} of {prompts}",
                param=f"samples[{number}].prompt",
            )
        _check_tokens(sample.tokens, text.vocab_size, f"samples[{number}].tokens")
        length = len(roster.prompts[sample.prompt])
        if context is not None and length + sample.max_tokens > context:
            raise UserError(
                f"a prompt of {length} tokens and a response of up to {sample.max_tokens} exceed "
                f"the model's context of {context}",
                param=f"samples[{number}].max_tokens",
                hint="lower rollout.max_tokens, or set dataset.overlong to drop or truncate_left",
            )


def check_release(roster: Roster, samples: Sequence[int]) -> None:
    """Raises ``UserError`` naming a sample that the call never had."""
    for sample in samples:
        if not 0 <= sample < len(roster.samples):
            raise UserError(
                f"sample {sample} of {len(roster.samples)} is to be released", param="release"
            )


def _check_cuts(cuts: Sequence[int], length: int, number: int) -> None:
    if not all(before < cut for before, cut in pairwise((0, *cuts, length))):
        raise UserError(
            f"the cuts {list(cuts)} of prompt {number} do not ascend between 0 and its {length} "
            "tokens",
            param=f"cuts[{number}]",
        )


def _check_tokens(tokens: list[int], vocabulary: int, param: str) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise UserError(
            f"token {min(tokens) if min(tokens) < 0 else max(tokens)} is outside the model's "
            f"vocabulary of {vocabulary}",
            param=param,
            hint="the tokenizer and the model do not belong together",
        )


def split_finished(
    roster: Roster, first: int, stop_token_ids: Sequence[int]
) -> tuple[list[int], Finished]:
    """Of the samples from ``first`` on, those to generate and those that arrived complete."""
    stops = set(stop_token_ids)
    waiting: list[int] = []
    ended: list[int] = []
    reasons: list[FinishReason] = []
    for number, sample in enumerate(roster.samples[first:], first):
        stopped = bool(sample.tokens) and sample.tokens[-1] in stops
        if stopped or len(sample.tokens) >= sample.max_tokens:
            ended.append(number)
            reasons.append("stop" if stopped else "length")
        else:
            waiting.append(number)
    return waiting, Finished(samples=ended, reasons=reasons)
