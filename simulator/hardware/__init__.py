"""Hardware facts as data: accelerators, links, prices, cold starts. See ``catalog``."""

from simulator.hardware.catalog import ANY_ZONE, Catalog, load_catalog, unknown
from simulator.hardware.facts import (
    DTYPE_BYTES,
    GIB,
    Accelerator,
    ColdStart,
    Dtype,
    Efficiency,
    Link,
    Price,
    Range,
    show_usd,
)

__all__ = [
    "ANY_ZONE",
    "DTYPE_BYTES",
    "GIB",
    "Accelerator",
    "Catalog",
    "ColdStart",
    "Dtype",
    "Efficiency",
    "Link",
    "Price",
    "Range",
    "load_catalog",
    "show_usd",
    "unknown",
]
