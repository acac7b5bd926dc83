"""The sections of a job spec, a subject a file; ``rlhfless.spec`` has them all."""
