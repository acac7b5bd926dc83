"""What all instances of a fuzzed job's functions have in common: what they may be asked, what they
answer, and what their answers leave in the object store.

Each request is held against what the job should ask. Answers are those of ``truth``. Weight
versions are kept in the object store by the same compare-and-swap as real training does, and first
results under the same names. One ``Functions`` outlives all controllers of a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from rlhfless.batches import decode_batch, read_batch
from rlhfless.errors import TransientError
from rlhfless.frames import FrameReader, encode_frame
from rlhfless.messages import (
    AnyFrame,
    ExportRequest,
    GradientsDone,
    GradientsRequest,
    LogprobsDone,
    LogprobsRequest,
    ModelRef,
    Request,
    RewardDone,
    RewardRequest,
    RolloutRequest,
    SampleTask,
    TrainDone,
    TrainRequest,
)
from rlhfless.objects import ObjectStore
from rlhfless.versions import (
    FileEntry,
    Manifest,
    commit,
    committed,
    last_checkpoint,
    manifest_name,
    read_manifest,
    version_folder,
)
from simulator.fuzz import truth
from simulator.fuzz.expected import Expected, by_shape, rows_of, same_batch
from simulator.fuzz.trace import Trace, Violation


@dataclass
class Functions:
    """What all instances of a job's functions share. ``trained``: version -> the calls that found
    themselves its maker. ``attempts`` numbers the files that trainers write."""

    expected: Expected
    store: ObjectStore
    trace: Trace
    trained: dict[int, list[str]] = field(default_factory=dict)
    exported: int | None = None
    attempts: int = 0
    _known_pairs: set[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._known_pairs = by_shape(self.expected.by_id)

    # --- what is asked ----------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises ``Violation`` if no controller in its right mind would ask this, and
        ``TransientError`` if what it needs has been collected."""
        if isinstance(request, RolloutRequest):
            for task in request.samples:
                self.check_task(task, request.prompts[task.prompt], request.model.version)
            self._check_weights(request.model)
        elif isinstance(request, RewardRequest):
            self._check_reward(request)
        elif isinstance(request, LogprobsRequest):
            pairs = zip(request.prompts, request.responses, strict=True)
            if not {(tuple(p), tuple(r)) for p, r in pairs} <= self._known_pairs:
                raise Violation(f"{request.call.id} asks for what nobody generated")
            if request.model.version:
                raise Violation("the reference is not the initial model")
        elif isinstance(request, GradientsRequest):
            whole = self.expected.batch(request.model.version)
            part = rows_of(whole, request.samples)
            difference = same_batch(decode_batch(request.batch), part)
            if difference is not None or request.groups != whole.groups.tolist():
                raise Violation(f"{request.call.id}, samples {request.samples}: {difference}")
            self._check_weights(request.model)
        elif isinstance(request, TrainRequest | ExportRequest):
            self._check_weights(request.model)

    def check_task(self, task: SampleTask, prompt: list[int], version: int) -> None:
        sample = self.expected.by_id.get(task.id)
        if sample is None:
            raise Violation(f"there is no sample {task.id} in this job")
        asked = (task.seed, tuple(prompt), task.max_tokens, version)
        should = (sample.seed, sample.prompt.tokens, sample.max_tokens, sample.version)
        if asked != should:
            raise Violation(f"sample {task.id} is asked as {asked}, not {should}")
        if task.tokens != sample.tokens[: len(task.tokens)]:
            raise Violation(f"sample {task.id} goes on from {task.tokens}, not {sample.tokens}")
        if len(task.tokens) > sample.length:
            raise Violation(f"sample {task.id} goes on after its end")

    def _check_reward(self, request: RewardRequest) -> None:
        for index, name in enumerate(request.sample_ids):
            sample = self.expected.by_id[name]
            row = sample.prompt.row
            columns = {key: values[index] for key, values in request.columns.items()}
            asked = (request.completion_ids[index], request.prompts[index], columns)
            if asked != (sample.tokens, row.prompt, row.columns):
                raise Violation(f"a reward of {name} is asked for {asked}")

    def _check_weights(self, model: ModelRef) -> None:
        """What an instance pulls must be there."""
        if not model.version:
            return
        manifest = read_manifest(self.store, model.job, model.version)
        folder = version_folder(model.job, model.version)
        if manifest is None or not all(
            self.store.exists(f"{folder}/{name}") for name in manifest.files
        ):
            raise TransientError(f"version {model.version} is not in the store (any more)")

    # --- what is answered -------------------------------------------------------------------------

    def answer(self, request: Request, frame: AnyFrame) -> AnyFrame:
        """The terminal frame of a unary call that has just been done; its effect is here."""
        if isinstance(request, RewardRequest):
            assert isinstance(frame, RewardDone)
            return truth.rewards(request)
        if isinstance(request, LogprobsRequest):
            pairs = zip(request.prompts, request.responses, strict=True)
            values = [truth.reference(p, r).astype("<f4").tobytes() for p, r in pairs]
            return LogprobsDone(logprobs=b"".join(values))
        if isinstance(request, TrainRequest):
            assert isinstance(frame, TrainDone)
            return self._train(request, frame)
        if isinstance(request, GradientsRequest):
            assert isinstance(frame, GradientsDone)
            made = read_manifest(self.store, request.call.job, request.model.version + 1)
            return frame if made is None else GradientsDone()
        if isinstance(request, ExportRequest):
            self.exported = request.model.version
        return frame

    def first_result(self, request: Request) -> AnyFrame | None:
        """What an earlier run of a unary call has left in the store, as ``functions.results``."""
        if isinstance(request, ExportRequest | GradientsRequest):
            return None
        try:
            stored = self.store.get(_result_name(request))
        except FileNotFoundError:
            return None
        return next(iter(FrameReader().feed(stored)))

    def keep_result(self, request: Request, frame: AnyFrame) -> None:
        if not isinstance(request, ExportRequest | GradientsRequest):
            self.store.put(_result_name(request), encode_frame(frame))

    def _train(self, request: TrainRequest, frame: TrainDone) -> TrainDone:
        """As ``functions.training.trainer``: what was committed stands, restoring must be possible,
        and the version is made by compare-and-swap."""
        job, parent = request.model.job, request.model.version
        earlier = committed(self.store, job, parent + 1, request.call.id)
        if earlier is not None:
            return TrainDone(version=parent + 1, metrics=earlier.metrics, repeated=True)
        self._check_restorable(job, parent)
        batch = read_batch(self.store, request.batch)
        difference = same_batch(batch, self.expected.batch(parent))
        if difference is not None:
            raise Violation(f"version {parent + 1} is trained on another batch: {difference}")
        self.attempts += 1
        folder, data = version_folder(job, parent + 1), f"{self.attempts}-00000.safetensors"
        state = f"{self.attempts}-state.safetensors"
        files = [data, state] if request.checkpoint else [data]
        for name in files:
            self.store.put(f"{folder}/{name}", name.encode())
        manifest, ours = commit(
            self.store,
            Manifest(
                job=job,
                version=parent + 1,
                parent=parent,
                call_id=request.call.id,
                kind="full",
                tensors={},
                files={name: FileEntry(size=len(name), sha256="") for name in files},
                attachments={"optimizer": state} if request.checkpoint else {},
                metrics=frame.metrics | {"policy/kl": 0.0},
                train_request=msgspec.to_builtins(request),
                data_position=request.data_position,
            ),
        )
        if ours:
            self.trained.setdefault(parent + 1, []).append(request.call.id)
            self.trace.note(f"version {parent + 1} is made by {request.call.id}")
        return msgspec.structs.replace(
            frame, version=manifest.version, metrics=manifest.metrics, repeated=not ours
        )

    def _check_restorable(self, job: str, parent: int) -> None:
        """A new training instance must be able to come to ``parent``: from the last checkpoint and
        the batches of all versions since."""
        saved = last_checkpoint(self.store, job)
        first = 0
        if saved is not None and saved.version <= parent:
            first = saved.version
            folder = version_folder(job, first)
            for name in saved.attachments.values():
                if not self.store.exists(f"{folder}/{name}"):
                    raise Violation(f"checkpoint {first} has lost {name}")
        for version in range(first + 1, parent + 1):
            made = read_manifest(self.store, job, version)
            if made is None or made.train_request is None:
                raise Violation(f"{manifest_name(job, version)} is gone; training cannot go on")
            ref = msgspec.convert(made.train_request, TrainRequest).batch
            try:
                read_batch(self.store, ref)
            except TransientError as error:
                raise Violation(f"version {version} cannot be made again: {error}") from error


def _result_name(request: Request) -> str:
    return f"results/{request.call.job}/{request.call.id}"
