"""A batch that decodes: samples come in, draw a token an iteration, and leave when they end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from functions.rollout.decoder import Decoder, NewRow, compaction
from functions.rollout.roster import Roster
from functions.rollout.samples import Samples
from functions.rollout.sampling import Sampler
from rlhfless.messages import SamplingParams


class Batch:
    """Joins a decoder, the samples' records and the sampler; their rows are the same rows."""

    def __init__(
        self,
        sampling: SamplingParams,
        roster: Roster,
        decoder: Decoder,
        samples: Samples,
        device: torch.device,
    ) -> None:
        self._roster = roster
        self._decoder = decoder
        self._samples = samples
        self._sampler = Sampler(sampling)
        self._device = device
        self._newest = torch.empty(0, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def admit(self, samples: Sequence[int]) -> list[int]:
        """Prefill samples and draw each one's next token; those that ended by it."""
        roster = self._roster
        tasks = [roster.samples[sample] for sample in samples]
        logits = self._decoder.admit(
            [
                NewRow(t.prompt, roster.prompts[t.prompt], t.tokens, roster.cuts[t.prompt])
                for t in tasks
            ]
        )
        self._samples.add_rows(samples)
        return self._draw(logits, len(self._newest))

    @torch.inference_mode()
    def step(self) -> list[int]:
        """One token for every row; the samples that ended by it."""
        return self._draw(self._decoder.step(self._newest), 0)

    @torch.inference_mode()
    def release(self, samples: Collection[int]) -> list[int]:
        """Those of ``samples`` that are in the batch leave it; returns them."""
        rows = self._samples.rows_of(samples)
        return self._drop(rows) if rows else []

    def _draw(self, logits: Tensor, first: int) -> list[int]:
        variates = torch.from_numpy(self._samples.variates(first)).to(self._device)
        tokens, logprobs = self._sampler(logits, variates)
        self._newest = torch.cat((self._newest[:first], tokens)) if first else tokens
        rows = self._samples.record(tokens.cpu().numpy(), logprobs.cpu().numpy(), first)
        return self._drop(rows) if rows else []

    def _drop(self, rows: Sequence[int]) -> list[int]:
        """Rows leave the batch; the samples they were."""
        gone = self._samples.samples_of(rows)
        moves = compaction(len(self._newest), rows)
        remaining = len(self._newest) - len(rows)
        for source, target in moves:
            self._newest[target] = self._newest[source]
        self._newest = self._newest[:remaining]
        self._samples.drop_rows(moves, remaining)
        self._decoder.drop(rows)
        return gone
