"""Datasets: what is read, what is said when it cannot be, and the order of rows over a job."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dataset import Position, PromptOrder, load_rows
from rlhfless.errors import UserError
from rlhfless.spec import DatasetSpec

ROWS = [
    {"prompt": "one", "answer": "1", "extra": None},
    {"prompt": "two", "answer": "2", "extra": [1, 2]},
    {"prompt": "three", "answer": "3", "extra": {"a": 1}},
]
CHAT = [{"role": "user", "content": "one"}]


def write_jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def failure(spec: DatasetSpec) -> UserError:
    with pytest.raises(UserError) as caught:
        load_rows(spec, "dataset")
    return caught.value


def test_jsonl_gives_prompts_and_all_further_columns(tmp_path: Path) -> None:
    rows = load_rows(DatasetSpec(path=write_jsonl(tmp_path / "a.jsonl", ROWS)), "dataset")
    assert [row.prompt for row in rows] == ["one", "two", "three"]
    assert rows[1].columns == {"answer": "2", "extra": [1, 2]}
    assert rows[2].where == "a.jsonl line 3"


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"prompt": "one"}\n\n  \n{"prompt": "two"}\n', encoding="utf-8")
    rows = load_rows(DatasetSpec(path=str(path)), "dataset")
    assert [(row.prompt, row.where) for row in rows] == [
        ("one", "a.jsonl line 1"),
        ("two", "a.jsonl line 4"),
    ]


def test_parquet_reads_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    rows = [{"prompt": CHAT, "answer": "1"}, {"prompt": CHAT, "answer": "2"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = load_rows(DatasetSpec(path=str(tmp_path / "a.parquet")), "dataset")
    assert [(row.prompt, row.columns) for row in found] == [
        (CHAT, {"answer": "1"}),
        (CHAT, {"answer": "2"}),
    ]


def test_a_dataset_on_disk_and_its_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = datasets.Dataset.from_list([{"prompt": "one"}])
    plain.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict(train=plain, test=plain).save_to_disk(str(tmp_path / "split"))
    assert load_rows(DatasetSpec(path=str(tmp_path / "plain")), "dataset")[0].prompt == "one"
    split = str(tmp_path / "split")
    assert len(load_rows(DatasetSpec(path=split, split="test"), "dataset")) == 1
    error = failure(DatasetSpec(path=split, split="tset"))
    assert error.param == "dataset.split"
    assert "train, test" in error.detail


def test_columns_are_renamed_for_prompt_and_rewards(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "q", "prompt": "old", "gold": 1}])
    spec = DatasetSpec(path=path, columns={"prompt": "question", "answer": "gold"})
    (row,) = load_rows(spec, "dataset")
    assert row.prompt == "q"
    assert row.columns == {"answer": 1}


def test_one_column_may_serve_under_two_names(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "t"}])
    (row,) = load_rows(DatasetSpec(path=path, columns={"prompt": "text", "a": "text"}), "dataset")
    assert (row.prompt, row.columns) == ("t", {"a": "t"})


def test_chat_prompts_and_system_prompts(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "one"}, {"prompt": CHAT}])
    system = {"role": "system", "content": "Be brief."}
    spec = DatasetSpec(path=path, system_prompt="Be brief.")
    assert [row.prompt for row in load_rows(spec, "dataset")] == [[system, *CHAT]] * 2
    assert [r.prompt for r in load_rows(DatasetSpec(path=path, chat=True), "dataset")] == [CHAT] * 2
    assert [r.prompt for r in load_rows(DatasetSpec(path=path), "dataset")] == ["one", CHAT]


def test_limit_keeps_the_first_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    rows = load_rows(DatasetSpec(path=path, limit=2), "dataset")
    assert [row.prompt for row in rows] == ["one", "two"]


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    error = failure(DatasetSpec(path=str(tmp_path / "trian.jsonl")))
    assert error.param == "dataset.path"
    assert f"did you mean {tmp_path / 'train.jsonl'}?" in error.detail
    assert "nor a folder" in failure(DatasetSpec(path=str(tmp_path / "no" / "a.jsonl"))).detail


def test_a_missing_column_names_those_there_are_and_the_nearest(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "q", "solution": "s"}])
    error = failure(DatasetSpec(path=path))
    assert error.param == "dataset.columns.prompt"
    assert "question, solution" in error.detail
    assert error.hint is not None
    assert "dataset.columns.prompt=question" in error.hint
    error = failure(DatasetSpec(path=path, columns={"prompt": "qestion"}))
    assert "did you mean question?" in error.detail


def test_a_column_cannot_shadow_what_every_reward_gets(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "completions": "c"}])
    error = failure(DatasetSpec(path=path))
    assert error.param == "dataset.columns"
    assert "'completions'" in error.detail
    (row,) = load_rows(DatasetSpec(path=path, columns={"gold": "completions"}), "dataset")
    assert row.columns == {"gold": "c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "one"}\n{"prompt": \n', "a.jsonl line 2 is not JSON"),
        ('["prompt"]\n', "a.jsonl line 1 is no JSON object"),
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"prompt": 3}\n', "a.jsonl line 1: the prompt must be text or a list of chat messages"),
        ('{"prompt": ["hello"]}\n', "a.jsonl line 1: the prompt must be text or a list"),
        ('{"prompt": "one"}\n{"answer": "x"}\n', "a.jsonl line 2: the prompt must be text"),
        ('{"prompt": ""}\n', "a.jsonl line 1: the prompt is empty"),
    ],
)
def test_bad_data_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    assert message in failure(DatasetSpec(path=str(path))).detail


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt\none\n")
    assert failure(DatasetSpec(path=str(tmp_path / "a.csv"))).param == "dataset.format"
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in failure(DatasetSpec(path=str(tmp_path / "a.jsonl"))).detail
    (tmp_path / "a.parquet").write_text("no parquet")
    assert "as Parquet" in failure(DatasetSpec(path=str(tmp_path / "a.parquet"))).detail
    (tmp_path / "folder").mkdir()
    assert "save_to_disk" in failure(DatasetSpec(path=str(tmp_path / "folder"))).detail
    spec = DatasetSpec(path=str(tmp_path / "folder"), format="jsonl")
    assert "cannot read" in failure(spec).detail


SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 5)


@given(SIZES, SEEDS, st.booleans(), st.lists(st.integers(1, 50), max_size=8))
def test_every_epoch_uses_every_row_once(
    num_rows: int, seed: int, shuffle: bool, counts: list[int]
) -> None:
    order = PromptOrder(num_rows, seed, shuffle)
    position, rows = Position(), []
    for count in counts:
        taken, position = order.take(position, count)
        assert len(taken) == count
        rows += taken
    assert divmod(len(rows), num_rows) == (position.epoch, position.index)
    for epoch in range(position.epoch):
        chunk = rows[epoch * num_rows : (epoch + 1) * num_rows]
        assert Counter(chunk) == Counter(range(num_rows))
        assert shuffle or chunk == list(range(num_rows))


@given(SIZES, SEEDS, st.lists(st.integers(1, 50), min_size=1, max_size=8), st.data())
def test_resuming_anywhere_equals_going_on(
    num_rows: int, seed: int, counts: list[int], data: st.DataObject
) -> None:
    order = PromptOrder(num_rows, seed, shuffle=True)
    positions, taken = [Position()], []
    for count in counts:
        rows, after = order.take(positions[-1], count)
        taken.append(rows)
        positions.append(after)
    start = data.draw(st.integers(0, len(counts) - 1))
    fresh, position, again = PromptOrder(num_rows, seed, shuffle=True), positions[start], []
    for count in counts[start:]:
        rows, position = fresh.take(position, count)
        again.append(rows)
    assert again == taken[start:]
    assert position == positions[-1]


def test_the_seed_decides_and_epochs_differ() -> None:
    def first_two(seed: int) -> list[int]:
        return PromptOrder(50, seed, shuffle=True).take(Position(), 100)[0]

    assert first_two(1) == first_two(1)
    assert first_two(1) != first_two(2)
    assert first_two(1)[:50] != first_two(1)[50:]


@pytest.mark.parametrize(
    ("rows", "per_step", "steps", "epochs", "expected"),
    [(10, 4, None, 1, 3), (10, 5, None, 2, 4), (10, 4, None, 2, 5), (10, 4, 7, 1, 7)],
)
def test_steps_or_epochs_decide_the_length(
    rows: int, per_step: int, steps: int | None, epochs: int, expected: int
) -> None:
    assert PromptOrder(rows, 0, shuffle=True).num_steps(per_step, steps, epochs) == expected
