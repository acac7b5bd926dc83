"""Prefill on the lean path: prompts go through the model, unless their prefixes are known.

What is new runs packed, without padding. With prefixes: those found are laid down; a segment that
several prompts lack is computed for one of them and copied, level by level; then each prompt's rest
runs. Prompts lie in rows of a ``ColumnCache`` and end in its column ``end``.

T new tokens in all, L layers, H key-value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from functions.rollout.columns import ColumnCache
from functions.rollout.llama_extend import Piece, extensions
from functions.rollout.llama_layers import causal_attention, finish, logits, project
from functions.rollout.llama_weights import LlamaWeights
from functions.rollout.prefixes import Prefixes


@dataclass
class Prompt:
    """A prompt in the cache. The first ``known`` of its segments, ``begin`` tokens, are there.

    ``cuts``: as in ``messages.PrefixUse``.
    """

    tokens: Sequence[int]
    cuts: Sequence[int] = ()
    row: int = -1
    keys: tuple[str, ...] = ()
    known: int = 0
    begin: int = 0

    @property
    def next_key(self) -> str | None:
        return self.keys[self.known] if self.known < len(self.keys) else None


@dataclass(frozen=True)
class _Stretch:
    """Tokens ``[start, stop)`` of a prompt, to be run."""

    prompt: Prompt
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


class Prefill:
    """Into one cache. ``tokens``: run through the model so far."""

    def __init__(
        self, weights: LlamaWeights, cache: ColumnCache, prefixes: Prefixes | None = None
    ) -> None:
        self._weights = weights
        self._cache = cache
        self._prefixes = prefixes
        self.tokens = 0

    def prompts(self, prompts: Sequence[Prompt]) -> Tensor:
        """Append prompts to the cache; the logits [N, V] of their next tokens."""
        missing = self._begin(prompts)
        x = self._run([_Stretch(p, p.begin, len(p.tokens)) for p in prompts])
        self._keep(missing)
        return logits(self._weights, x)

    def segments(self, prompts: Sequence[Prompt]) -> None:
        """Append prompts that end with their last cut, for the sake of their segments alone."""
        missing = self._begin(prompts)
        rest = [_Stretch(p, p.begin, len(p.tokens)) for p in prompts if p.next_key is not None]
        if rest:
            self._run(rest)
        self._keep(missing)

    # --- prefixes -----------------------------------------------------------------------------

    def _begin(self, prompts: Sequence[Prompt]) -> dict[str, _Stretch]:
        """Append prompts and fill in what is known or shared; the segments that were not known."""
        first = self._cache.append([len(prompt.tokens) for prompt in prompts])
        for row, prompt in enumerate(prompts, first):
            prompt.row = row
        if self._prefixes is None or not any(prompt.cuts for prompt in prompts):
            return {}
        with self._prefixes.loading():
            self._lay_down(prompts, self._prefixes)
        missing = {
            key: _Stretch(prompt, start, stop)
            for prompt in prompts
            for key, start, stop in _segments(prompt)[prompt.known :]
        }
        self._run_shared(prompts)
        return missing

    def _lay_down(self, prompts: Sequence[Prompt], prefixes: Prefixes) -> None:
        wanted: dict[str, int] = {}
        for prompt in prompts:
            prompt.keys = prefixes.keys(prompt.tokens, prompt.cuts)
            wanted |= {key: stop - start for key, start, stop in _segments(prompt)}
        found = prefixes.find(wanted)
        for prompt in prompts:
            for key, start, stop in _segments(prompt):
                if key not in found:
                    break
                columns = self._columns(prompt, start, stop)
                for layer, (keys, values) in enumerate(found[key]):
                    self._cache.keys[layer][prompt.row, :, columns] = keys
                    self._cache.values[layer][prompt.row, :, columns] = values
                prompt.known, prompt.begin = prompt.known + 1, stop

    def _run_shared(self, prompts: Sequence[Prompt]) -> None:
        """Compute once what several prompts lack, level by level."""
        uses = Counter(key for prompt in prompts for key in prompt.keys[prompt.known :])
        while True:
            owners: dict[str | None, Prompt] = {}
            for prompt in prompts:
                if uses[prompt.next_key or ""] > 1:
                    owners.setdefault(prompt.next_key, prompt)
            if not owners:
                return
            self._run([_Stretch(p, p.begin, p.cuts[p.known]) for p in owners.values()])
            for prompt in prompts:
                owner = owners.get(prompt.next_key)
                if owner is not None and owner is not prompt:
                    self._copy(owner, prompt, prompt.cuts[prompt.known])
            for prompt in prompts:
                if prompt.next_key in owners:
                    prompt.begin = prompt.cuts[prompt.known]
                    prompt.known += 1

    def _copy(self, source: Prompt, target: Prompt, stop: int) -> None:
        """The tokens from where both are known to ``stop``."""
        there = self._columns(target, target.begin, stop)
        here = self._columns(source, target.begin, stop)
        for tensors in (self._cache.keys, self._cache.values):
            for tensor in tensors:
                tensor[target.row, :, there] = tensor[source.row, :, here]

    def _keep(self, missing: dict[str, _Stretch]) -> None:
        if self._prefixes is not None:
            self._prefixes.add({key: self._taken(part) for key, part in missing.items()})

    def _taken(self, part: _Stretch) -> Tensor:
        """A segment's keys and values [L, 2, H, tokens, D], copied to the CPU."""
        columns = self._columns(part.prompt, part.start, part.stop)
        row = part.prompt.row
        both = zip(self._cache.keys, self._cache.values, strict=True)
        return torch.stack(
            [torch.stack((k[row, :, columns], v[row, :, columns])) for k, v in both]
        ).cpu()

    def _columns(self, prompt: Prompt, start: int, stop: int) -> slice:
        offset = self._cache.end - len(prompt.tokens)
        return slice(offset + start, offset + stop)

    # --- the model ----------------------------------------------------------------------------

    def _run(self, stretches: Sequence[_Stretch]) -> Tensor:
        """Run stretches together, which depend on nothing that is not in the cache; the residual
        [N, hidden] of the last token of each."""
        weights, cache = self._weights, self._cache
        order = sorted(range(len(stretches)), key=lambda n: self._place(stretches[n]))
        parts = [stretches[n] for n in order]
        columns = [self._columns(part.prompt, part.start, part.stop) for part in parts]
        lengths = [part.count for part in parts if part.start == 0]
        whole = sum(lengths)
        pieces = [
            Piece(part.prompt.row, part.stop, part.count, window.stop)
            for part, window in zip(parts, columns, strict=True)
            if part.start
        ]
        rest = extensions(pieces, weights.device)
        tokens = [t for part in parts for t in part.prompt.tokens[part.start : part.stop]]
        x = F.embedding(torch.tensor(tokens, device=weights.device), weights.embedding)
        positions = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        cos, sin = weights.rotation(positions)
        for index, layer in enumerate(weights.layers):
            query, key, value = project(weights, layer, x, cos, sin)
            offset = 0
            for part, window in zip(parts, columns, strict=True):
                own, row = slice(offset, offset + part.count), part.prompt.row
                cache.keys[index][row, :, window] = key[own].transpose(0, 1)
                cache.values[index][row, :, window] = value[own].transpose(0, 1)
                offset += part.count
            attended: list[Tensor] = []
            if lengths:
                attended.append(
                    causal_attention(query[:whole], key[:whole], value[:whole], lengths)
                )
            offset = whole
            for group in rest:
                own = slice(offset, offset + group.tokens)
                attended.append(
                    group.attend(query[own], cache.keys[index], cache.values[index], weights.scale)
                )
                offset += group.tokens
            mixed = attended[0] if len(attended) == 1 else torch.cat(attended)
            x = finish(weights, layer, x, mixed)
        self.tokens += len(x)
        last = torch.tensor([part.count for part in parts]).cumsum(0) - 1
        result = torch.empty(len(parts), x.shape[1], dtype=x.dtype, device=x.device)
        result[torch.tensor(order, device=x.device)] = x[last.to(x.device)]
        return result

    def _place(self, part: _Stretch) -> tuple[bool, int, int]:
        """Prompts from their beginning first, longest first; the others by where they end."""
        end = self._columns(part.prompt, part.start, part.stop).stop if part.start else 0
        return part.start > 0, end, -part.count


def _segments(prompt: Prompt) -> list[tuple[str, int, int]]:
    """Key, start and stop of each; a prompt may have none."""
    ends = (0, *prompt.cuts)
    return [(key, *piece) for key, piece in zip(prompt.keys, pairwise(ends), strict=True)]
