"""What the controller and the functions say to each other: typed once, for both sides.

Every call is ``POST /v1/<function>`` with one msgpack request body; the answer is a stream of
frames (``rlhfless.frames``) that ends with exactly one terminal frame: the function's result, or a
``Problem``. Long calls send ``Heartbeat`` frames, so no proxy sees them silent. Structs ignore
fields they do not know, so controller and functions can be of neighbouring releases.

Shapes: token ids are plain lists; log-probs travel as little-endian float32 bytes, one per token,
in the order of the tokens they belong to.
"""

from __future__ import annotations

from typing import TypeAlias

from rlhfless.wire.base import (
    FUNCTION_NAMES,
    CallInfo,
    Drain,
    Frame,
    FunctionName,
    Heartbeat,
    ModelRef,
    Problem,
    Struct,
    finite,
)
from rlhfless.wire.rollout import (
    Finished,
    FinishReason,
    PrefillDone,
    PrefillRequest,
    PrefixUse,
    Progress,
    Released,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SamplingParams,
    Steered,
    SteerRequest,
    Tokens,
)
from rlhfless.wire.scoring import (
    LogprobsDone,
    LogprobsRequest,
    Prompt,
    RewardDone,
    RewardFunction,
    RewardRequest,
)
from rlhfless.wire.training import (
    Algorithm,
    BatchRef,
    ExportDone,
    ExportRequest,
    GradientsDone,
    GradientsRequest,
    Optimization,
    TrainDone,
    TrainRequest,
)

Request: TypeAlias = (
    RolloutRequest
    | SteerRequest
    | PrefillRequest
    | RewardRequest
    | LogprobsRequest
    | GradientsRequest
    | TrainRequest
    | ExportRequest
)
AnyFrame: TypeAlias = (
    Tokens
    | Finished
    | Released
    | Progress
    | RolloutDone
    | Steered
    | PrefillDone
    | RewardDone
    | LogprobsDone
    | GradientsDone
    | TrainDone
    | ExportDone
    | Heartbeat
    | Drain
    | Problem
)
TERMINAL: tuple[type[Frame], ...] = (
    RolloutDone,
    Steered,
    PrefillDone,
    RewardDone,
    LogprobsDone,
    GradientsDone,
    TrainDone,
    ExportDone,
    Problem,
)

INSTANCE_HEADER = "x-rlhfless-instance"
"""Of an answer: the instance that gives it, in a cluster the pod. Callers behind a load balancer
cannot know otherwise."""
DRAIN_PATH = "/v1/drain"
"""No call: an instance that is told so admits no more, and hands over what runs."""
ROUTES: dict[type[Struct], tuple[FunctionName, str]] = {
    RolloutRequest: ("rollout", "/v1/rollout"),
    SteerRequest: ("rollout", "/v1/rollout/steer"),
    PrefillRequest: ("rollout", "/v1/prefill"),
    RewardRequest: ("reward", "/v1/reward"),
    LogprobsRequest: ("reference", "/v1/logprobs"),
    GradientsRequest: ("training", "/v1/gradients"),
    TrainRequest: ("training", "/v1/train"),
    ExportRequest: ("training", "/v1/export"),
}
"""Which function serves a request, and at which path."""

__all__ = [
    "FUNCTION_NAMES",
    "ROUTES",
    "TERMINAL",
    "Algorithm",
    "AnyFrame",
    "BatchRef",
    "CallInfo",
    "Drain",
    "ExportDone",
    "ExportRequest",
    "FinishReason",
    "Finished",
    "Frame",
    "FunctionName",
    "GradientsDone",
    "GradientsRequest",
    "Heartbeat",
    "LogprobsDone",
    "LogprobsRequest",
    "ModelRef",
    "Optimization",
    "PrefillDone",
    "PrefillRequest",
    "PrefixUse",
    "Problem",
    "Progress",
    "Prompt",
    "Released",
    "Request",
    "RewardDone",
    "RewardFunction",
    "RewardRequest",
    "RolloutDone",
    "RolloutRequest",
    "SampleTask",
    "SamplingParams",
    "SteerRequest",
    "Steered",
    "Struct",
    "Tokens",
    "TrainDone",
    "TrainRequest",
    "finite",
]
