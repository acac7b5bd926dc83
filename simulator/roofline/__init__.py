"""Seconds and bytes of inference and training, from a model's shape and hardware facts."""

from simulator.roofline.engine import PREFILL_CHUNK, EngineCost
from simulator.roofline.inference import InferenceCost, fabric_of
from simulator.roofline.memory import (
    BLOCK_TOKENS,
    check_fits,
    kv_blocks,
    kv_bytes_free,
    smallest_tensor_parallel,
)
from simulator.roofline.operators import Fabric, Operator
from simulator.roofline.training import Layout, Recompute, StepTime, TrainingCost, TrainingMemory
from simulator.roofline.training_fit import TrainingRoom
from simulator.roofline.transfers import (
    delta_bytes,
    kv_bytes,
    transfer_s,
    weights_bytes_per_accelerator,
)

__all__ = [
    "BLOCK_TOKENS",
    "PREFILL_CHUNK",
    "EngineCost",
    "Fabric",
    "InferenceCost",
    "Layout",
    "Operator",
    "Recompute",
    "StepTime",
    "TrainingCost",
    "TrainingMemory",
    "TrainingRoom",
    "check_fits",
    "delta_bytes",
    "fabric_of",
    "kv_blocks",
    "kv_bytes",
    "kv_bytes_free",
    "smallest_tensor_parallel",
    "transfer_s",
    "weights_bytes_per_accelerator",
]
