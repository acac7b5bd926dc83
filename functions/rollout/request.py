"""Whether a request can be served, and what of it is done already."""

from __future__ import annotations

from typing import Any

from rlhfless.errors import UserError
from rlhfless.messages import Finished, FinishReason, RolloutRequest


def check_request(request: RolloutRequest, config: Any) -> None:
    """Raises ``UserError`` naming the prompt or sample that the model cannot take."""
    text = config.get_text_config()
    for number, prompt in enumerate(request.prompts):
        if not prompt:
            raise UserError(f"prompt {number} is empty", param=f"prompts[{number}]")
        _check_tokens(prompt, text.vocab_size, f"prompts[{number}]")
    context = getattr(text, "max_position_embeddings", None)
    for number, sample in enumerate(request.samples):
        if not 0 <= sample.prompt < len(request.prompts):
            raise UserError(
                f"sample {sample.id} names prompt {sample.prompt} of {len(request.prompts)}",
                param=f"samples[{number}].prompt",
            )
        _check_tokens(sample.tokens, text.vocab_size, f"samples[{number}].tokens")
        length = len(request.prompts[sample.prompt])
        if context is not None and length + sample.max_tokens > context:
            raise UserError(
                f"a prompt of {length} tokens and a response of up to {sample.max_tokens} exceed "
                f"the model's context of {context}",
                param=f"samples[{number}].max_tokens",
                hint="lower rollout.max_tokens, or set dataset.overlong to drop or truncate_left",
            )


def _check_tokens(tokens: list[int], vocabulary: int, param: str) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise UserError(
            f"token {min(tokens) if min(tokens) < 0 else max(tokens)} is outside the model's "
            f"vocabulary of {vocabulary}",
            param=param,
            hint="the tokenizer and the model do not belong together",
        )


def split_finished(request: RolloutRequest) -> tuple[list[int], Finished]:
    """The samples to generate, and those that arrived complete."""
    stops = set(request.sampling.stop_token_ids)
    waiting: list[int] = []
    ended: list[int] = []
    reasons: list[FinishReason] = []
    for number, sample in enumerate(request.samples):
        stopped = bool(sample.tokens) and sample.tokens[-1] in stops
        if stopped or len(sample.tokens) >= sample.max_tokens:
            ended.append(number)
            reasons.append("stop" if stopped else "length")
        else:
            waiting.append(number)
    return waiting, Finished(samples=ended, reasons=reasons)
