"""What a batch must be before anything is learned from it."""

from __future__ import annotations

import numpy as np

from functions.training.policy import Policy
from rlhfless.batches import Batch
from rlhfless.errors import InternalError, UserError
from rlhfless.messages import Algorithm


def check_batch(batch: Batch, algorithm: Algorithm, policy: Policy) -> None:
    """Raise ``UserError`` for rewards that are no numbers and sequences the model cannot take,
    ``InternalError`` for log-probs that are no numbers or are missing."""
    _check_sequences(batch, policy)
    _check_numbers(batch, algorithm)


def _check_sequences(batch: Batch, policy: Policy) -> None:
    if batch.num_samples == 0 or len(batch.response_tokens) == 0:
        raise UserError(
            "the batch has no response tokens to learn from",
            hint="check rollout.max_tokens and the stop tokens",
        )
    if (batch.prompt_lengths == 0).any():
        raise UserError(
            f"sample {int(np.argmin(batch.prompt_lengths))} of the batch has an empty prompt",
            param="dataset.columns.prompt",
            hint="every prompt needs at least one token, such as a beginning-of-sequence token",
        )
    lengths = batch.prompt_lengths + batch.response_lengths
    if policy.context is not None and lengths.max() > policy.context:
        raise UserError(
            f"sample {int(lengths.argmax())} has {lengths.max()} tokens; "
            f"the model's context is {policy.context}",
            param="rollout.max_tokens",
        )
    for tokens in (batch.prompt_tokens, batch.response_tokens):
        if tokens.min() < 0 or tokens.max() >= policy.vocabulary:
            raise UserError(
                f"the batch has tokens outside the model's vocabulary of {policy.vocabulary}",
                hint="the tokenizer and the model do not belong together",
            )


def _check_numbers(batch: Batch, algorithm: Algorithm) -> None:
    bad = np.flatnonzero(~np.isfinite(batch.rewards))
    if len(bad):
        raise UserError(
            f"the reward of sample {bad[0]} is {batch.rewards[bad[0]]}"
            + (f" (and of {len(bad) - 1} more)" if len(bad) > 1 else ""),
            param="rewards",
            hint="a reward must return finite numbers; try it with rlhfless reward-check",
        )
    if not np.isfinite(batch.rollout_logprobs).all():
        raise InternalError("the rollout's log-probs are not finite")
    if algorithm.kl_coefficient > 0:
        if batch.reference_logprobs is None:
            raise InternalError("a KL penalty needs the reference's log-probs in the batch")
        if not np.isfinite(batch.reference_logprobs).all():
            raise InternalError("the reference's log-probs are not finite")
