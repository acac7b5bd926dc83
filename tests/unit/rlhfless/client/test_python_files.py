from pathlib import Path

import pytest

from rlhfless.client.python_files import with_siblings
from rlhfless.errors import UserError


def make(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_file_by_itself(tmp_path: Path) -> None:
    make(tmp_path, rewards="import json\nimport numpy as np\nfrom os import path\n", other="")
    assert list(with_siblings(str(tmp_path / "rewards.py"))) == ["rewards.py"]


def test_modules_beside_it_are_followed(tmp_path: Path) -> None:
    make(
        tmp_path,
        rewards="def f():\n    from parsing import parse\n",
        parsing="import tables.words, numbers_\nfrom . import nothing\n",
        numbers_="import rewards\n",
        tables__words="from tables import deep\n",
        tables__deep__more="",
        unused="import secrets_\n",
        secrets_="",
    )
    (tmp_path / "tables" / "data.json").write_text("{}")
    found = with_siblings(str(tmp_path / "rewards.py"))
    assert sorted(found) == [
        "numbers_.py",
        "parsing.py",
        "rewards.py",
        "tables/deep/more.py",
        "tables/words.py",
    ]
    assert all(Path(path).is_file() for path in found.values())


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    make(tmp_path, rewards="def f(:\n")
    with pytest.raises(UserError, match="is no Python file"):
        with_siblings(str(tmp_path / "rewards.py"))
    (tmp_path / "rewards.py").write_bytes(b"\0")
    with pytest.raises(UserError, match="is no Python file"):
        with_siblings(str(tmp_path / "rewards.py"))
    with pytest.raises(UserError, match="cannot read"):
        with_siblings(str(tmp_path / "none.py"))
