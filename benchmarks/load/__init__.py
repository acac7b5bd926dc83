"""What loads a service from outside (``benchmarks.service_load``)."""
