"""Measured constants, where the simulator looks for them."""

from rlhfless.measurements import Measurements, load_measurements, save_measurements

__all__ = ["Measurements", "load_measurements", "save_measurements"]
