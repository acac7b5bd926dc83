"""The column cache against a plain list of rows, and the sharing of prompts among rows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.rollout.attention import attend, attend_part, merge
from functions.rollout.columns import ColumnCache, LayerShape
from functions.rollout.decoder import compaction
from functions.rollout.sharing import Sharing

CPU = torch.device("cpu")
SHAPES = [LayerShape(2, 3, 2, 3), LayerShape(1, 4, 1, 2)]


class Model:
    """What the cache should hold: of each row, the numbers written to it in order."""

    def __init__(self, max_rows: int) -> None:
        self.cache = ColumnCache(SHAPES, max_rows, torch.float32, CPU)
        self.rows: list[list[float]] = []
        self._count = 0.0

    def append(self, lengths: list[int]) -> None:
        first = self.cache.append(lengths)
        assert first == len(self.rows)
        for number, length in enumerate(lengths, first):
            values = [self._next() for _ in range(length)]
            self.rows.append(values)
            window = slice(self.cache.end - length, self.cache.end)
            for tensor in (*self.cache.keys, *self.cache.values):
                tensor[number, :, window] = torch.tensor(values).unsqueeze(1)

    def advance(self) -> None:
        column = self.cache.advance()
        for number, row in enumerate(self.rows):
            row.append(self._next())
            for tensor in (*self.cache.keys, *self.cache.values):
                tensor[number, :, column] = row[-1]

    def drop(self, rows: list[int]) -> None:
        moves = compaction(len(self.rows), rows)
        for source, target in moves:
            self.rows[target] = self.rows[source]
        del self.rows[len(self.rows) - len(rows) :]
        self.cache.drop(moves, len(self.rows))

    def check(self) -> None:
        assert self.cache.rows == len(self.rows)
        assert self.cache.used_tokens == sum(map(len, self.rows))
        if not self.rows:
            return
        width = max(map(len, self.rows))
        assert self.cache.end - self.cache.low == width
        mask = self.cache.mask()
        if mask is None:
            assert {len(row) for row in self.rows} == {width}
        for index, shape in enumerate(SHAPES):
            keys, values = self.cache.layer(index)
            assert keys.shape == (len(self.rows), shape.key_heads, width, shape.key_dim)
            assert values.shape == (len(self.rows), shape.value_heads, width, shape.value_dim)
            for number, row in enumerate(self.rows):
                for tensor in (keys, values):
                    assert torch.isfinite(tensor[number]).all()
                    if row:
                        assert tensor[number, 0, -len(row) :, 0].tolist() == row
                if mask is not None:
                    hidden = mask[number, 0, 0] == -torch.inf
                    assert hidden.tolist() == [True] * (width - len(row)) + [False] * len(row)

    def _next(self) -> float:
        self._count += 1.0
        return self._count


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.data())
def test_rows_keep_their_columns_whatever_comes_and_goes(
    max_rows: int, data: st.DataObject
) -> None:
    model = Model(max_rows)
    model.append(data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=4)))
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["append", "advance", "drop"])):
            case "append":
                model.append(data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=4)))
            case "advance":
                for _ in range(data.draw(st.integers(1, 70))):
                    model.advance()
            case "drop":
                rows = st.integers(0, max(0, len(model.rows) - 1))
                chosen = data.draw(st.sets(rows, max_size=len(model.rows)))
                model.drop(sorted(chosen))
        model.check()


def test_merged_parts_are_the_whole_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(6, n, 8, generator=generator, dtype=torch.float64) for n in (3, 20, 20)
    )
    mask = torch.zeros(6, 1, 20, dtype=torch.float64)
    mask[::2, :, :4] = -torch.inf
    whole = attend(query, keys, values, mask, 0.3)
    want = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask.expand(-1, 3, -1), scale=0.3
    )
    torch.testing.assert_close(whole, want)
    parts = [
        attend_part(query, keys[:, part], values[:, part], mask[..., part], 0.3)
        for part in (slice(0, 7), slice(7, 20))
    ]
    torch.testing.assert_close(merge(*parts[0], *parts[1]), whole)


def test_sharing_attends_each_row_to_its_own_prompt() -> None:
    generator = torch.Generator().manual_seed(1)
    sharing = Sharing()
    sharing.add_prompts([10, 20, 30])
    sharing.add([20, 10, 20, 30, 20])
    keys, values = (torch.randn(3, 2, 9, 4, generator=generator) for _ in range(2))
    query = torch.randn(5, 6, 4, generator=generator)
    out, log_sum = sharing.attend(query, keys, values, None, 0.5)
    for row, prompt in enumerate([1, 0, 1, 2, 1]):
        grouped = query[row].view(2, 3, 4)
        want, want_log = attend_part(grouped, keys[prompt], values[prompt], None, 0.5)
        torch.testing.assert_close(out[row], want.reshape(6, 4))
        torch.testing.assert_close(log_sum[row], want_log.reshape(6))
    sharing.drop([(4, 1), (3, 2)], 3)  # rows 1 and 2 go: 20, 20, 30 are left
    assert sharing.unused(kept=[], read_by_rows=True) == [0]
    assert sharing.unused(kept=[10], read_by_rows=False) == [1, 2]
    sharing.drop_prompts([(2, 0)], 2)
    assert [sharing.row_of(name) for name in (30, 20)] == [0, 1]
