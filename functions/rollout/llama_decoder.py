"""The lean path: a decode step of a Llama-family model in as few operations as torch allows.

Two layouts of a batch, chosen per request:

* expanded: a row's columns hold its prompt and its response. One attention a layer.
* shared: a prompt's keys and values are held once; rows hold their responses only. Rows of a
  prompt query it together (one wide product instead of many thin ones), and the two parts of the
  context are merged by their softmax denominators. Wins when groups share long prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from functions.rollout.attention import attend, attend_part, merge
from functions.rollout.columns import ColumnCache
from functions.rollout.decoder import NewRow, compaction
from functions.rollout.llama_layers import finish, logits, project
from functions.rollout.llama_prefill import Prefill, Prompt
from functions.rollout.llama_weights import LlamaWeights
from functions.rollout.prefixes import Prefixes
from functions.rollout.sharing import Sharing


class LlamaDecoder:
    """A ``Decoder`` over ``LlamaWeights``; lives for one request."""

    def __init__(
        self,
        weights: LlamaWeights,
        *,
        max_rows: int,
        num_prompts: int,
        shared: bool,
        prefixes: Prefixes | None = None,
    ) -> None:
        self._weights = weights
        shapes = weights.layer_shapes
        self._rows = ColumnCache(shapes, max_rows, weights.dtype, weights.device)
        self._prompts = ColumnCache(shapes, num_prompts, weights.dtype, weights.device)
        self._sharing = Sharing()
        self._shared = shared
        self._positions = np.zeros(max_rows, dtype=np.int64)
        self._next: dict[int, Tensor] = {}
        self._prefill = Prefill(weights, self._prompts, prefixes)
        self._extended = 0

    @property
    def prefill_tokens(self) -> int:
        return self._prefill.tokens + self._extended

    @property
    def num_rows(self) -> int:
        return self._rows.rows

    @property
    def kv_tokens(self) -> int:
        return self._rows.used_tokens + self._prompts.used_tokens

    # --- rows come ----------------------------------------------------------------------------

    @torch.inference_mode()
    def admit(self, rows: Sequence[NewRow]) -> Tensor:
        self._know(rows)
        own = [len(row.tokens) for row in rows]
        context = [0 if self._shared else len(row.prompt_tokens) for row in rows]
        first = self._rows.append([a + b for a, b in zip(own, context, strict=True)])
        if first + len(rows) > len(self._positions):
            self._positions = np.resize(self._positions, 2 * (first + len(rows)))
        for number, row in enumerate(rows, first):
            self._positions[number] = len(row.prompt_tokens) + len(row.tokens)
        if not self._shared:
            self._copy_prompts(first, rows)
        self._sharing.add([row.prompt for row in rows])
        result = torch.stack([self._next[row.prompt] for row in rows])
        for number, row in enumerate(rows):
            if row.tokens:
                result[number] = self._extend(first + number, row)
        return result

    def _know(self, rows: Sequence[NewRow]) -> None:
        """Prefill the rows' prompts that are not here."""
        new = {row.prompt: row for row in rows if row.prompt not in self._next}
        if not new:
            return
        names = sorted(new, key=lambda name: -len(new[name].prompt_tokens))
        prompts = [Prompt(new[name].prompt_tokens, new[name].cuts) for name in names]
        outputs = self._prefill.prompts(prompts)
        self._sharing.add_prompts(names)
        self._next.update(zip(names, outputs, strict=True))

    def _copy_prompts(self, first: int, rows: Sequence[NewRow]) -> None:
        """Lay each row's prompt down in its own columns; equal neighbours by one broadcast."""
        start = 0
        for stop in range(1, len(rows) + 1):
            row = rows[start]
            if (
                stop < len(rows)
                and rows[stop].prompt == row.prompt
                and (len(rows[stop].tokens) == len(row.tokens))
            ):
                continue
            length = len(row.prompt_tokens)
            source = self._sharing.row_of(row.prompt)
            begin = self._rows.end - len(row.tokens) - length
            for index in range(len(self._weights.layers)):
                for to, kept in (
                    (self._rows.keys[index], self._prompts.keys[index]),
                    (self._rows.values[index], self._prompts.values[index]),
                ):
                    prompt = kept[source, :, self._prompts.end - length : self._prompts.end]
                    to[first + start : first + stop, :, begin : begin + length] = prompt
            start = stop

    def _extend(self, number: int, row: NewRow) -> Tensor:
        """Run a continued sample's tokens after its prompt; the logits [V] of the next one."""
        weights, length = self._weights, len(row.tokens)
        before = len(row.prompt_tokens)
        source = self._sharing.row_of(row.prompt)
        x = F.embedding(torch.tensor(row.tokens, device=weights.device), weights.embedding)
        cos, sin = self._weights.rotation(torch.arange(before, before + length))
        mask = torch.ones(length, before + length, dtype=torch.bool, device=weights.device)
        mask = mask.tril_(before)
        columns = slice(self._rows.end - length, self._rows.end)
        prompt = slice(self._prompts.end - before, self._prompts.end)
        for index, layer in enumerate(weights.layers):
            query, key, value = project(weights, layer, x, cos, sin)
            key, value = key.transpose(0, 1), value.transpose(0, 1)
            self._rows.keys[index][number, :, columns] = key
            self._rows.values[index][number, :, columns] = value
            attended = F.scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                torch.cat((self._prompts.keys[index][source, :, prompt], key), 1).unsqueeze(0),
                torch.cat((self._prompts.values[index][source, :, prompt], value), 1).unsqueeze(0),
                attn_mask=mask,
                enable_gqa=weights.heads != weights.kv_heads,
            )
            x = finish(weights, layer, x, attended[0].transpose(0, 1).flatten(1))
        self._extended += length
        return logits(weights, x[-1:])[0]

    # --- rows advance -------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        weights, count = self._weights, self.num_rows
        cos, sin = self._weights.rotation(torch.from_numpy(self._positions[:count]))
        x = F.embedding(tokens, weights.embedding)
        column = self._rows.advance()
        mask = self._rows.mask()
        for index, layer in enumerate(weights.layers):
            query, key, value = project(weights, layer, x, cos, sin)
            self._rows.keys[index][:count, :, column] = key
            self._rows.values[index][:count, :, column] = value
            x = finish(weights, layer, x, self._attend(index, query, mask))
        self._positions[:count] += 1
        return logits(weights, x)

    def _attend(self, index: int, query: Tensor, mask: Tensor | None) -> Tensor:
        """[rows, A * D] from ``query`` [rows, A, D] over all that each row has seen."""
        weights, count = self._weights, len(query)
        keys, values = self._rows.layer(index)
        if not self._shared and weights.dtype != torch.float32:
            # The fused kernels keep scores in float32, which a plain half-precision product rounds.
            grouped = query.view(count, weights.kv_heads, -1, weights.head_dim)
            return F.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=mask, scale=weights.scale
            ).reshape(count, -1)
        flat = query.reshape(count * weights.kv_heads, -1, weights.head_dim)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        if mask is not None:
            mask = mask.expand(-1, weights.kv_heads, -1, -1).flatten(0, 1)
        if not self._shared:
            return attend(flat, keys, values, mask, weights.scale).view(count, -1)
        own, own_log = attend_part(flat, keys, values, mask, weights.scale)
        shape = (count, weights.heads)
        theirs, their_log = self._sharing.attend(
            query, *self._prompts.layer(index), self._prompts.mask(), weights.scale
        )
        return merge(theirs, their_log, own.view(*shape, -1), own_log.view(shape)).flatten(1)

    # --- rows go ------------------------------------------------------------------------------

    @torch.inference_mode()
    def drop(self, rows: Sequence[int]) -> None:
        moves = compaction(self.num_rows, rows)
        remaining = self.num_rows - len(rows)
        for source, target in moves:
            self._positions[target] = self._positions[source]
        self._rows.drop(moves, remaining)
        self._sharing.drop(moves, remaining)
        self._free_prompts()

    @torch.inference_mode()
    def forget(self, prompt: int) -> None:
        if self._next.pop(prompt, None) is not None:
            self._free_prompts()

    def _free_prompts(self) -> None:
        """Let go of prompts that no further row will bring and, if shared, no row still reads."""
        gone = self._sharing.unused(kept=self._next.keys(), read_by_rows=self._shared)
        if gone:
            count = self._prompts.rows
            moves = compaction(count, gone)
            self._prompts.drop(moves, count - len(gone))
            self._sharing.drop_prompts(moves, count - len(gone))
