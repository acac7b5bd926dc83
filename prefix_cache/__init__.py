"""Prompt prefixes shared between rollout instances."""
