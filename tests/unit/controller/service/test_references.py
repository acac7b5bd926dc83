from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.service.library import Library
from controller.service.references import (
    CheckpointReference,
    FileReference,
    HubReference,
    Kind,
    LibraryReference,
    UrlReference,
    file_ids,
    parse,
    references,
)
from rlhfless.errors import NotFoundError, UserError
from rlhfless.spec import JobSpec

FILE = "file-" + "0a" * 12
JOB = "job-" + "0" * 28


@pytest.mark.parametrize(
    ("value", "kind", "reference"),
    [
        (FILE, "dataset", FileReference(FILE)),
        (FILE, "reward", FileReference(FILE)),
        (f"{FILE}/code/rewards.py", "reward", FileReference(FILE, "code/rewards.py")),
        ("library:math/train.jsonl", "dataset", LibraryReference("math/train.jsonl")),
        ("library:Qwen2.5-0.5B", "model", LibraryReference("Qwen2.5-0.5B")),
        (f"checkpoint:{JOB}/20", "model", CheckpointReference(JOB, 20)),
        ("https://host.example/a.jsonl", "dataset", UrlReference("https://host.example/a.jsonl")),
        ("Qwen/Qwen2.5-0.5B", "model", HubReference("Qwen/Qwen2.5-0.5B")),
        ("openai/gsm8k", "dataset", HubReference("openai/gsm8k")),
        ("org/reward-model", "reward_model", HubReference("org/reward-model")),
    ],
)
def test_what_a_job_may_name(value: str, kind: Kind, reference: object) -> None:
    assert parse(value, kind, "x") == reference


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (value, kind)
        for kind in ("model", "dataset", "reward", "reward_model")
        for value in (
            "",
            "/etc/passwd",
            "etc",
            "./data/a.jsonl",
            "../a",
            "a/../b",
            "../../etc",
            "..",
            "~/model",
            "~root/x",
            "a/b/c",
            "file:///etc/passwd",
            "s3://bucket/key",
            "gs://bucket/key",
            "ftp://host/x",
            "memory://x",
            "C:\\x",
            "org\\name",
            "org/name\n",
            "org/name ",
            ".hidden/x",
            "org/.hidden",
            "org/na--me",
            "library:",
            "library:/etc/passwd",
            "library:../x",
            "library:a/../../x",
            "library:a//b",
            "library:./a",
            "library:.hidden",
            "library:a\\..\\b",
            "library:a/b\0",
            f"{FILE}/",
            f"{FILE}/../x.py",
            f"{FILE}//etc/x.py",
            f"{FILE}0",
            FILE.upper(),
            "os",
            "os.path",
            "subprocess",
            f"checkpoint:{JOB}/../1",
            f"checkpoint:{JOB}/-1",
            f"checkpoint:{JOB}/01",
            f"checkpoint:{JOB}",
            "checkpoint:../1",
        )
    ],
)
def test_nothing_else_is_a_name(value: str, kind: Kind) -> None:
    with pytest.raises(UserError) as refused:
        parse(value, kind, "some.field")
    assert refused.value.param == "some.field"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (f"{FILE}/x.py", "dataset"),
        (f"{FILE}/x.py", "model"),
        (f"{FILE}/x.txt", "reward"),
        (f"checkpoint:{JOB}/1", "dataset"),
        (f"checkpoint:{JOB}/1", "reward_model"),
        ("https://host.example/x", "model"),
        ("org/name", "reward"),
    ],
)
def test_a_name_of_another_kind_is_refused(value: str, kind: Kind) -> None:
    with pytest.raises(UserError):
        parse(value, kind, "some.field")


@given(st.text(max_size=40))
def test_no_text_leads_out_of_the_library(text: str) -> None:
    for value in (text, f"library:{text}", f"{FILE}/{text}", f"library:a/{text}"):
        try:
            found = parse(value, "reward", "x")
        except UserError:
            continue
        name = found.name if isinstance(found, LibraryReference) else getattr(found, "member", "")
        assert not name.startswith(("/", "~"))
        assert ".." not in name.split("/")
        assert "\\" not in name


def spec(**changes: Any) -> JobSpec:
    whole = {
        "model": {"path": "library:model"},
        "dataset": {"path": FILE},
        "rewards": [{"http": "https://reward.example/"}],
    }
    return JobSpec.model_validate(whole | changes)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": {"path": "/m"}}, "model.path"),
        ({"dataset": {"path": "/d.jsonl"}}, "dataset.path"),
        ({"evaluation": {"dataset": {"path": "e.jsonl"}}}, "evaluation.dataset.path"),
        ({"rewards": [{"python": "/r.py:f"}]}, "rewards.0.python"),
        ({"rewards": [{"http": "http://r"}, {"python": "os:system"}]}, "rewards.1.python"),
        ({"rewards": [{"python": f"{FILE}:f()"}]}, "rewards.0.python"),
        ({"rewards": [{"python": f"{FILE}:__import__('os')"}]}, "rewards.0.python"),
        ({"rewards": [{"model": "/r"}]}, "rewards.0.model"),
    ],
)
def test_the_field_at_fault_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(UserError) as refused:
        references(spec(**changes))
    assert refused.value.param == param


def test_all_that_a_job_names_is_found() -> None:
    named = references(
        spec(
            evaluation={"dataset": {"path": "org/data"}},
            rewards=[
                {"python": f"{FILE}/a.py:Scores.exact"},
                {"python": "library:quickstart/rewards.py:f"},
                {"model": "org/reward"},
                {"http": "https://reward.example/"},
            ],
            integrations=[{"type": "mlflow", "url": "https://mlflow.example"}],
            webhooks=[{"url": "https://hook.example/x"}],
        )
    )
    assert [each.param for each in named] == [
        "model.path",
        "dataset.path",
        "evaluation.dataset.path",
        "rewards.0.python",
        "rewards.1.python",
        "rewards.2.model",
        "rewards.3.http",
        "integrations.0.url",
        "webhooks.0.url",
    ]
    assert named[3].function == "Scores.exact"


def test_files_of_a_stored_job_are_found_wherever_they_stand() -> None:
    other = "file-" + "1" * 24
    kept = {"dataset": {"path": FILE}, "rewards": [{"python": f"{other}/x.py:f"}], "new": [FILE]}
    assert file_ids(kept) == {FILE, other}


def test_the_library_holds_what_lies_in_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "library", tmp_path / "outside"
    for folder in (inside / "a" / "model", inside / ".hidden", outside):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (inside / "data.jsonl").write_text("{}")
    (inside / "way-out").symlink_to(outside)
    (inside / "link.jsonl").symlink_to(inside / "data.jsonl")
    (inside / "loop").symlink_to(inside)
    library = Library(str(inside))
    assert library.path("data.jsonl", "x") == str(inside / "data.jsonl")
    assert library.path("link.jsonl", "x") == str(inside / "data.jsonl")
    assert library.path("a/model", "x") == str(inside / "a" / "model")
    assert [model.name for model in library.models()] == ["a/model"]
    absent = "the library has no"
    for name in ("nothing", "way-out", "way-out/config.json", "loop"):
        with pytest.raises(NotFoundError, match=absent) as refused:
            library.path(name, "model.path")
        assert refused.value.param == "model.path"
    with pytest.raises(UserError):
        library.path("../outside", "model.path")


def test_without_a_library_nothing_is_in_it() -> None:
    assert Library(None).models() == []
    with pytest.raises(NotFoundError):
        Library(None).path("a", "x")
