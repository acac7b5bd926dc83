"""Models and datasets from the Hugging Face Hub, downloaded in a process of their own.

So a download that is no longer wanted ends at once, and what ``datasets`` loads goes when it is
done. A token that the service's environment has is used: what it may read, every tenant may name.

    python -m controller.service.hub {model|dataset} org/name <folder> <max bytes>

downloads into the folder (``data`` below it for a dataset, as ``save_to_disk`` writes it) and
prints one JSON object: ``{}``, or ``{"kind": "user"|"transient", "detail": ...}``.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import sys
from typing import Literal

from controller.service.model_folder import HUB_LEAVES_OUT, HUB_PATTERNS, WEIGHTS
from rlhfless.errors import RlhflessError, TransientError, UserError

What = Literal["model", "dataset"]


def cached_model(name: str) -> str | None:
    """The folder of a model that is whole in the operator's own Hub cache. Blocks."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            name,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=list(HUB_LEAVES_OUT),
            local_files_only=True,
        )
    except (OSError, ValueError):  # of the library's errors all are one of these
        return None
    names = set(os.listdir(folder))
    if "config.json" not in names or not WEIGHTS & names:
        return None  # its tokenizer or config alone
    return folder


async def download(what: What, name: str, folder: str, max_bytes: int, param: str) -> None:
    """Fill an empty folder. Raises ``UserError`` naming ``param`` for what cannot be had,
    ``TransientError`` where another attempt may succeed."""
    command = (sys.executable, "-m", "controller.service.hub", what, name, folder, str(max_bytes))
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,  # a name is never taken for a path of where the service was started
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        problem = json.loads(said)
    except ValueError:
        raise TransientError(f"the download of {name} ended with {process.returncode}") from None
    if problem:
        kind = UserError if problem["kind"] == "user" else TransientError
        raise kind(f"{name} cannot be had from the Hub: {problem['detail']}", param=param)


def environment() -> dict[str, str]:
    """Ours, with this source tree importable from any folder."""
    tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, (tree, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


def _download(what: str, name: str, folder: str, max_bytes: int) -> None:
    import huggingface_hub

    api = huggingface_hub.HfApi()
    if what == "model":
        model = api.model_info(name, files_metadata=True)
        wanted = [file.size or 0 for file in model.siblings or [] if _is_wanted(file.rfilename)]
        _check_size(sum(wanted), max_bytes)
        huggingface_hub.snapshot_download(
            name,
            revision=model.sha,
            local_dir=folder,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=list(HUB_LEAVES_OUT),
        )
        return
    import datasets

    dataset = api.dataset_info(name, files_metadata=True)
    _check_size(sum(file.size or 0 for file in dataset.siblings or []), max_bytes)
    cache = os.path.join(folder, "cache")
    found = datasets.load_dataset(name, revision=dataset.sha, cache_dir=cache)
    found.save_to_disk(os.path.join(folder, "data"))


def _is_wanted(name: str) -> bool:
    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    return matches(HUB_PATTERNS) and not matches(HUB_LEAVES_OUT)


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise UserError(f"it has {num_bytes:,} bytes; at most {max_bytes:,} are downloaded")


def main() -> None:
    what, name, folder, max_bytes = sys.argv[1:]
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    problem: dict[str, str] = {}
    try:
        _download(what, name, folder, int(max_bytes))
    except (RlhflessError, RepositoryNotFoundError, ValueError, ImportError) as error:
        problem = {"kind": "user", "detail": _first_line(error)}
    except HfHubHTTPError as error:
        refused = error.response is not None and error.response.status_code in (401, 403, 404)
        problem = {"kind": "user" if refused else "transient", "detail": _first_line(error)}
    except Exception as error:  # the boundary of the process: whoever waits must hear of it
        problem = {"kind": "transient", "detail": _first_line(error)}
    print(json.dumps(problem))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
