"""A cluster that is not there: instances as cost models on virtual time."""

from simulator.platform.platform import SimulatedPlatform

__all__ = ["SimulatedPlatform"]
