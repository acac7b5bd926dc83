"""The recipes of images: pinned bases, no root, nothing from outside that is not named."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.helm import ROOT

IMAGES = sorted((ROOT / "deploy" / "images").glob("*.Dockerfile"))
PYPROJECT = str(ROOT / "pyproject.toml")
Instruction = tuple[str, str]


def _instructions(path: Path) -> list[Instruction]:
    """Keyword and the rest, continued lines joined; comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    split = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(keyword, rest) for keyword, rest in split]


def _last_stage(path: Path) -> list[Instruction]:
    instructions = _instructions(path)
    starts = [at for at, (keyword, _) in enumerate(instructions) if keyword == "FROM"]
    return instructions[starts[-1] :]


def _of(stage: list[Instruction], keyword: str) -> list[str]:
    return [rest for found, rest in stage if found == keyword]


def test_there_are_three() -> None:
    assert [path.stem for path in IMAGES] == ["controller", "functions-cpu", "functions-gpu"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_bases_are_pinned_by_digest(path: Path) -> None:
    instructions = _instructions(path)
    arguments = dict(rest.partition("=")[::2] for rest in _of(instructions, "ARG"))
    stages: set[str] = set()
    for line in _of(instructions, "FROM"):
        base, _, stage = line.partition(" AS ")
        stages.add(stage)
        for name, value in arguments.items():
            base = base.replace(f"${{{name}}}", value) if value else base
        assert re.search(r"@(sha256:[0-9a-f]{64}|\$\{VLLM_DIGEST\})$", base), base
    assert len(stages) >= 2  # what builds is not what runs


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_they_run_as_nobody_special_and_tell_their_health(path: Path) -> None:
    stage = _last_stage(path)
    assert _of(stage, "USER")[-1] == "10001:10001"  # a number, which runAsNonRoot can check
    (health,) = _of(stage, "HEALTHCHECK")
    assert "/healthz" in health
    assert "org.opencontainers.image.version" in " ".join(_of(stage, "LABEL"))
    (entry,) = _of(stage, "ENTRYPOINT")
    assert entry.startswith("[")  # no shell, which would keep SIGTERM to itself
    assert _of(stage, "STOPSIGNAL") == ["SIGTERM"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_what_they_copy_is_there(path: Path) -> None:
    for line in _of(_instructions(path), "COPY"):
        words = line.split()
        if words[0].startswith("--from"):
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_their_commands_are_shell(path: Path) -> None:
    for line in _of(_instructions(path), "RUN"):
        script = re.sub(r"^(--mount=\S+\s+)+", "", line)
        subprocess.run(["bash", "-n", "-c", script], check=True)


def _requirements() -> ModuleType:
    path = ROOT / "deploy" / "images" / "requirements.py"
    spec = importlib.util.spec_from_file_location("image_requirements", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _extras(name: str) -> list[str]:
    (path,) = (path for path in IMAGES if path.stem == name)
    text = " ".join(_of(_instructions(path), "RUN"))
    found = re.search(r"requirements\.py pyproject\.toml ([\w ]+?) *> wanted\.txt", text)
    assert found
    return found[1].split()


def test_the_controller_has_no_torch() -> None:
    """Nor does anything that it needs, as far as that is installed here."""
    listed = _requirements().requirements(PYPROJECT, _extras("controller"))
    open_names = [canonicalize_name(Requirement(line).name) for line in listed]
    seen: set[str] = set()
    while open_names:
        name = open_names.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # the object stores' libraries, which no test needs
        open_names += [
            canonicalize_name(requirement.name)
            for requirement in map(Requirement, needed)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    assert {"fastapi", "redis", "transformers", "s3fs", "gcsfs", "kubernetes"} <= seen
    assert not {"torch", "peft", "accelerate", "vllm"} & seen


def test_functions_have_what_they_import() -> None:
    for name in ("functions-cpu", "functions-gpu"):
        listed = _requirements().requirements(PYPROJECT, _extras(name))
        names = {canonicalize_name(Requirement(line).name) for line in listed}
        assert {"torch", "peft", "s3fs", "gcsfs", "safetensors"} <= names


def test_an_extra_that_there_is_not() -> None:
    with pytest.raises(KeyError):
        _requirements().requirements(PYPROJECT, ["nonsense"])


def test_images_are_those_that_the_chart_names() -> None:
    values = (ROOT / "deploy" / "helm" / "rlhfless" / "values.yaml").read_text(encoding="utf-8")
    for path in IMAGES:
        assert f"repository: rlhfless/{path.stem}," in values


@pytest.mark.parametrize("name", ["controller", "functions-cpu"])
def test_what_they_install_is_pinned(name: str) -> None:
    images = str(ROOT / "deploy" / "images" / "constraints.txt")
    pins = _requirements().constraints(str(ROOT / "constraints.txt"), images)
    versions = {canonicalize_name(Requirement(pin).name): Requirement(pin) for pin in pins}
    assert len(versions) == len(pins)
    for wanted in map(Requirement, _requirements().requirements(PYPROJECT, _extras(name))):
        (pin,) = versions[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), wanted


def test_an_image_s_own_pin_counts(tmp_path: Path) -> None:
    root, own = tmp_path / "root", tmp_path / "own"
    root.write_text("# why\nPython_Dateutil==4.0.0\nsix==1.0\n")
    own.write_text("python-dateutil==2.9.0\n")
    found = _requirements().constraints(str(root), str(own))
    assert sorted(found) == ["python-dateutil==2.9.0", "six==1.0"]
