"""A service of real processes, what befalls it, and what must hold all the same
(``benchmarks.service_faults``)."""
