"""The wire messages by subject; ``rlhfless.messages`` is where they are imported from."""
