"""Any causal LM through its own forward, with our column cache in place of the model's.

Slower than the lean path by the model's own Python, but it pays for live rows only and never pads
a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from functions.rollout.columns import ColumnCache, LayerShape
from functions.rollout.decoder import NewRow, compaction
from rlhfless.errors import UserError


class _ColumnLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a ``ColumnCache`` as transformers sees it: the open column is the last one."""

    def __init__(self, columns: ColumnCache, index: int) -> None:
        super().__init__()
        self._columns = columns
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        rows, column = self._columns.rows, self._columns.end - 1
        self._columns.keys[self._index][:rows, :, column] = key_states[:, :, 0]
        self._columns.values[self._index][:rows, :, column] = value_states[:, :, 0]
        return self._columns.layer(self._index)

    def get_seq_length(self) -> int:
        """Columns before the open one."""
        return self._columns.end - self._columns.low - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class HfDecoder:
    """A ``Decoder`` over a ``transformers`` model; lives for one request."""

    def __init__(self, model: Any, *, max_rows: int) -> None:
        self._model = model
        self._max_rows = max_rows
        self._columns: ColumnCache | None = None
        self._cache: Any = None
        self._positions = np.zeros(max_rows, dtype=np.int64)
        self._kept: dict[int, tuple[Tensor, list[tuple[Tensor, Tensor]]]] = {}
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._takes_keep = "logits_to_keep" in accepted
        self.prefill_tokens = 0

    @property
    def num_rows(self) -> int:
        return 0 if self._columns is None else self._columns.rows

    @property
    def kv_tokens(self) -> int:
        return 0 if self._columns is None else self._columns.used_tokens

    @torch.inference_mode()
    def admit(self, rows: Sequence[NewRow]) -> Tensor:
        fresh = {r.prompt: r.prompt_tokens for r in rows if not r.tokens}
        new = [name for name in fresh if name not in self._kept]
        self._kept.update(zip(new, self._prefill([fresh[name] for name in new]), strict=True))
        continued = [[*row.prompt_tokens, *row.tokens] for row in rows if row.tokens]
        replayed = iter(self._prefill(continued))
        parts = [next(replayed) if row.tokens else self._kept[row.prompt] for row in rows]
        lengths = [len(row.prompt_tokens) + len(row.tokens) for row in rows]
        columns = self._open_cache(parts[0][1])
        first = columns.append(lengths)
        if first + len(rows) > len(self._positions):
            self._positions = np.resize(self._positions, 2 * (first + len(rows)))
        self._positions[first : first + len(rows)] = lengths
        for number, ((_, layers), length) in enumerate(zip(parts, lengths, strict=True), first):
            window = slice(columns.end - length, columns.end)
            for index, (key, value) in enumerate(layers):
                columns.keys[index][number, :, window] = key
                columns.values[index][number, :, window] = value
        return torch.stack([logits for logits, _ in parts])

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        columns = self._columns
        assert columns is not None
        columns.advance()
        positions = torch.from_numpy(self._positions[: columns.rows]).to(tokens.device)
        lengths = positions.unsqueeze(1)
        width = columns.end - columns.low
        seen = torch.arange(width - 1, -1, -1, device=tokens.device) <= lengths
        output = self._forward(
            input_ids=tokens.unsqueeze(1),
            attention_mask=seen.to(torch.int64),
            position_ids=lengths,
            past_key_values=self._cache,
        )
        self._positions[: columns.rows] += 1
        logits: Tensor = output.logits[:, -1]
        return logits

    @torch.inference_mode()
    def drop(self, rows: Sequence[int]) -> None:
        assert self._columns is not None
        moves = compaction(self.num_rows, rows)
        for source, target in moves:
            self._positions[target] = self._positions[source]
        self._columns.drop(moves, self.num_rows - len(rows))

    def forget(self, prompt: int) -> None:
        self._kept.pop(prompt, None)

    def _prefill(
        self, sequences: Sequence[Sequence[int]]
    ) -> list[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
        """Next-token logits [V] and every layer's keys and values [H, length, D], per sequence.

        Padded on the right: causality keeps real tokens from the padding without a mask.
        """
        if not sequences:
            return []
        lengths = [len(sequence) for sequence in sequences]
        device = self._model.device
        padded = torch.zeros(len(sequences), max(lengths), dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            padded[row, : len(sequence)] = torch.tensor(sequence)
        lasts = sorted({length - 1 for length in lengths})
        keep = {"logits_to_keep": torch.tensor(lasts, device=device)} if self._takes_keep else {}
        output = self._forward(
            input_ids=padded.to(device),
            position_ids=torch.arange(max(lengths), device=device).unsqueeze(0),
            past_key_values=DynamicCache(),
            **keep,
        )
        layers = [_plain(layer) for layer in output.past_key_values.layers]
        if not layers or None in layers:
            raise UserError(
                f"{type(self._model).__name__} keeps no plain keys and values: rollout cannot "
                "batch it",
                param="model.path",
                hint="use a decoder-only attention model",
            )
        self.prefill_tokens += sum(lengths)
        # Without the option the model has computed the logits of every position.
        place = {last: i if self._takes_keep else last for i, last in enumerate(lasts)}
        return [
            (
                output.logits[row, place[length - 1]],
                [
                    (key[row, :, :length], value[row, :, :length])
                    for key, value in filter(None, layers)
                ],
            )
            for row, length in enumerate(lengths)
        ]

    def _open_cache(self, layers: Sequence[tuple[Tensor, Tensor]]) -> ColumnCache:
        if self._columns is None:
            shapes = [
                LayerShape(key.shape[0], key.shape[-1], value.shape[0], value.shape[-1])
                for key, value in layers
            ]
            key = layers[0][0]
            self._columns = ColumnCache(shapes, self._max_rows, key.dtype, key.device)
            self._cache = Cache(
                layers=[_ColumnLayer(self._columns, index) for index in range(len(shapes))]
            )
        return self._columns

    def _forward(self, **inputs: Any) -> Any:
        if not self._takes_positions:
            del inputs["position_ids"]
        return self._model(**inputs, use_cache=True)


def _plain(layer: Any) -> tuple[Tensor, Tensor] | None:
    """Keys and values [N, H, T, D] of a cache layer; None for state of another kind."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.dim() != 4:
        return None
    return keys, values
