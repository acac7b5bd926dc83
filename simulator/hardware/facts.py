"""What is known about accelerators, links, prices and cold starts: the shape of the data files.

Files use the units people quote (GB/s, TFLOP/s, microseconds, GiB); properties give SI units
(bytes, bytes/s, FLOP/s, seconds). Every fact carries its ``source``. What nobody knows is None and
is shown as ``unknown``, never 0.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float8"]
DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]

GIB = 2.0**30


class Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Efficiency(Fact):
    """How much of the datasheet a class of kernels reaches.

    A call that moves ``bytes`` and computes ``flops`` takes
    ``((bytes / (memory BW))^p + (flops / (compute peak))^p)^(1/p) + launch`` with p = ``exponent``.
    """

    memory: Share
    """Achieved share of the memory bandwidth."""
    compute: Share
    """Achieved share of the dense peak."""
    launch_us: NonNegative = 0.0
    """Fixed microseconds of a call."""
    exponent: Annotated[float, Field(ge=1)] = 4.0
    """How sharp the knee between both bounds is; 1 adds them up, infinity takes the greater."""
    source: str


class Accelerator(Fact):
    """One device: what the datasheet says, and what kernels make of it."""

    aliases: tuple[str, ...] = ()
    """Other names it goes by, e.g. the product label on Kubernetes nodes."""
    memory_gib: Positive
    bandwidth_gb_per_s: Positive
    """Of its own memory."""
    tflops: dict[Dtype, Positive] = Field(min_length=1)
    """Dense peak by data type."""
    gemm: Efficiency
    """Matrix products."""
    decode_attention: Efficiency
    """Attention of one new token a sequence over its keys and values."""
    prefill_attention: Efficiency
    """Attention of many new tokens of a sequence."""
    training: Efficiency
    """Forward and backward pass as a whole: ``compute`` is the share of the peak reached by the
    matrix products and attention executed, recomputation included; ``memory`` holds for the
    optimizer's update."""
    layer_us: NonNegative = 0.0
    """Norms, rotary embedding and activation of one block in decoding, microseconds."""
    iteration_us: NonNegative = 0.0
    """Scheduler, input preparation and sampler around one iteration, microseconds."""
    reserved_gib: NonNegative = 0.0
    """Memory that context, communication buffers and captured graphs take."""
    link: str
    """Link to its neighbours in the node."""
    host_link: str
    """Link to the host's memory."""
    network: str
    """Usual link between nodes, per accelerator."""
    source: str

    @property
    def memory_bytes(self) -> float:
        return self.memory_gib * GIB

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth_gb_per_s * 1e9


class Link(Fact):
    """A connection, as one accelerator sees it, in one direction."""

    gb_per_s: Positive
    """Line rate."""
    efficiency: Share = 1.0
    """Share of it that large transfers reach."""
    latency_us: NonNegative = 0.0
    """Fixed microseconds of a transfer or a collective."""
    source: str

    @property
    def bytes_per_s(self) -> float:
        """What large transfers reach."""
        return self.gb_per_s * 1e9 * self.efficiency

    @property
    def latency_s(self) -> float:
        return self.latency_us * 1e-6


class Range(Fact):
    """A price that was seen between two values; ``typical`` is their middle."""

    low: NonNegative
    high: NonNegative

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self

    @property
    def typical(self) -> float:
        return (self.low + self.high) / 2


def _as_range(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"low": value, "high": value}
    if isinstance(value, list) and len(value) == 2:
        return {"low": value[0], "high": value[1]}
    return value


UsdPerHour = Annotated[Range | None, BeforeValidator(_as_range)]
"""A number, ``[low, high]``, or null where nobody knows."""


class Price(Fact):
    """USD per hour of one accelerator in one zone, with its share of the machine around it."""

    on_demand: UsdPerHour = None
    spot: UsdPerHour = None
    date: str
    """When it was seen, e.g. ``2026-11``."""
    source: str


class ColdStart(Fact):
    """What passes between asking for an instance and its first call, in seconds.

    The weights come on top, at the lowest bandwidth on their way.
    """

    node_s: NonNegative = 0.0
    """A machine is found, boots and joins."""
    image_s: NonNegative = 0.0
    """The container's image is pulled."""
    start_s: NonNegative
    """The container starts and imports its libraries."""
    compile_s: NonNegative = 0.0
    """An inference engine compiles; 0 with a cache."""
    graphs_s: NonNegative = 0.0
    """An inference engine captures its graphs."""
    profile_s: NonNegative = 0.0
    """An inference engine measures the memory it may use, and warms up."""
    disk_gb_per_s: Positive | None = None
    """Bandwidth of what the weights are read from; None: only links bound it."""
    source: str

    def seconds(self, weight_bytes: float, bytes_per_s: float, engine: bool) -> float:
        """Until the first call. ``bytes_per_s``: the slowest link between store and accelerator;
        ``engine``: whether an inference engine starts (compile, graphs, profile).

        Worked number: 3.65 GB from a 0.125 GB/s volume after 17.5 s of imports, 12 s of graphs and
        6 s of profile: 64.7 s."""
        bound = bytes_per_s
        if self.disk_gb_per_s is not None:
            bound = min(bound, self.disk_gb_per_s * 1e9)
        seconds = self.node_s + self.image_s + self.start_s + weight_bytes / bound
        return seconds + self.compile_s + self.graphs_s + self.profile_s if engine else seconds


def show_usd(value: float | None) -> str:
    """Dollars for a person; ``unknown`` where nobody knows."""
    return "unknown" if value is None else f"${value:,.2f}"
