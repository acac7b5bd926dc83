"""One token per row from a batch of logits, by inverse CDF, without sorting the vocabulary.

The variate ``u`` of a row decides its token: the first whose cumulative probability exceeds ``u``.
Nothing else enters, so a sample continued elsewhere draws the same tokens. A large vocabulary is
walked in two levels (sums of blocks, then inside one block), and truncation is a threshold on the
probability, found among the blocks with the largest maxima: a full-vocabulary pass costs a read,
while sorting it would cost more than the model.

Ties: tokens as probable as the last one kept by top-k or top-p are all kept.

Shapes: B rows, V vocabulary, K candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhfless.messages import SamplingParams

_FLAT_VOCABULARY = 2048  # below this one cumulative sum over the row is cheapest
_SUM_BLOCK = 256
_MAX_BLOCK = 64
_NUCLEUS_BLOCKS = 128
_NUCLEUS_TOKENS = 1024  # of these blocks; a nucleus beyond costs a sort of its row


class Sampler:
    """Draws tokens and their log-probs under the distribution drawn from.

    At temperature 0 the distribution is a point mass: the arg-max, with log-prob 0.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._truncates = params.top_k > 0 or params.top_p < 1.0

    def __call__(self, logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """``logits`` [B, V] (may be overwritten), ``u`` [B] in [0, 1) -> int64 [B], float32 [B]."""
        if self._params.temperature == 0.0:
            tokens = logits.argmax(-1)
            return tokens, torch.zeros_like(tokens, dtype=torch.float32)
        probs = self.probabilities(logits)
        tokens, total = _inverse_cdf(probs, u)
        chosen = probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        return tokens, (chosen / total).log_()

    def probabilities(self, logits: Tensor) -> Tensor:
        """[B, V] float32 after temperature and truncation; rows of a truncated one sum below 1."""
        logits = logits.float()
        if self._params.temperature != 1.0:
            logits = logits.mul_(1.0 / self._params.temperature)
        probs = torch.softmax(logits, -1)
        if self._truncates:
            lowest = _threshold(probs, self._params.top_k, self._params.top_p)
            probs.masked_fill_(probs < lowest.unsqueeze(1), 0.0)
        return probs


def _inverse_cdf(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [B] at which the CDF of each row passes ``u``, and the rows' totals [B]."""
    vocabulary = probs.shape[1]
    if vocabulary <= _FLAT_VOCABULARY:
        index, _, total = _pass(probs, u)
        return index, total
    whole = vocabulary - vocabulary % _SUM_BLOCK
    sums = probs[:, :whole].view(len(probs), -1, _SUM_BLOCK).sum(-1)
    if whole < vocabulary:
        sums = torch.cat((sums, probs[:, whole:].sum(-1, keepdim=True)), 1)
    block, rest, total = _pass(sums, u)
    columns = (block * _SUM_BLOCK).unsqueeze(1) + torch.arange(_SUM_BLOCK, device=probs.device)
    inside = probs.gather(1, columns.clamp(max=vocabulary - 1))
    if whole < vocabulary:
        inside = inside * (columns < vocabulary)
    index = _first_above(inside.cumsum(-1), rest)
    return block * _SUM_BLOCK + index, total


def _pass(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Index [B] where the running sum passes ``u * total``, what is left of that, the total."""
    cdf = weights.cumsum(-1)
    total = cdf[:, -1]
    target = u * total
    index = _first_above(cdf, target)
    before = cdf.gather(1, (index - 1).clamp_(min=0).unsqueeze(1)).squeeze(1)
    return index, torch.where(index > 0, target - before, target), total


def _first_above(cdf: Tensor, target: Tensor) -> Tensor:
    """First index whose cumulative sum exceeds ``target``.

    Rounding may put the target on the total itself; one ulp below it still lies in the last entry
    of positive weight, so a token of probability zero is never chosen.
    """
    last = torch.nextafter(cdf[:, -1], torch.zeros_like(target))
    return torch.searchsorted(cdf, torch.minimum(target, last).unsqueeze(1), right=True).squeeze(1)


def _threshold(probs: Tensor, top_k: int, top_p: float) -> Tensor:
    """The least probability [B] that truncation keeps."""
    if 0 < top_k < probs.shape[1]:
        best = _largest(probs, top_k)
        if top_p >= 1.0:
            return best[:, -1]
        return _nucleus_end(best, top_p * best.sum(-1))
    if top_p >= 1.0:
        return torch.zeros_like(probs[:, 0])
    return _nucleus(probs, top_p)


def _largest(probs: Tensor, k: int) -> Tensor:
    """The ``k`` largest values of each row, descending [B, k].

    They all lie in the k blocks with the largest maxima.
    """
    candidates, _ = _leading_blocks(probs, k)
    return candidates.topk(k, dim=-1).values


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """The largest value t [B] such that the probabilities >= t sum to at least ``top_p``."""
    needed = torch.full_like(probs[:, 0], top_p)
    if probs.shape[1] <= _FLAT_VOCABULARY:
        return _nucleus_end(probs.sort(-1, descending=True).values, needed)
    candidates, complete_above = _leading_blocks(probs, _NUCLEUS_BLOCKS)
    best = candidates.topk(_NUCLEUS_TOKENS, dim=-1).values
    threshold = _nucleus_end(best, needed)
    # A flat distribution's nucleus reaches beyond the tokens looked at.
    short = ((best.sum(-1) < top_p) | (threshold < complete_above)).nonzero().squeeze(1)
    if len(short):
        ordered = probs[short].sort(-1, descending=True).values
        threshold[short] = _nucleus_end(ordered, needed[short])
    return threshold


def _nucleus_end(ordered: Tensor, needed: Tensor) -> Tensor:
    """The value [B] of ``ordered`` (descending) [B, K] at which its sum reaches ``needed`` [B]."""
    last = torch.searchsorted(ordered.cumsum(-1), needed.unsqueeze(1))
    return ordered.gather(1, last.clamp_(max=ordered.shape[1] - 1)).squeeze(1)


def _leading_blocks(probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values of the ``count`` blocks with the largest maxima [B, K], and the bound [B] at and above
    which no other block holds a value (0 when all blocks are taken)."""
    vocabulary = probs.shape[1]
    blocks = vocabulary // _MAX_BLOCK
    if count >= blocks:
        return probs, torch.zeros_like(probs[:, 0])
    whole = blocks * _MAX_BLOCK
    blocked = probs[:, :whole].view(len(probs), blocks, _MAX_BLOCK)
    maxima, chosen = blocked.amax(-1).topk(count + 1, dim=-1)
    index = chosen[:, :count, None].expand(-1, -1, _MAX_BLOCK)
    values = blocked.gather(1, index).flatten(1)
    if whole < vocabulary:  # the remainder is always a candidate
        values = torch.cat((values, probs[:, whole:]), 1)
    return values, torch.nextafter(maxima[:, -1], torch.ones_like(maxima[:, -1]))
