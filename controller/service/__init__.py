"""The parts of a service for several users: keys, jobs, leases, events and the queue."""
