"""Prompt prefixes shared between rollout instances: what to compute once, and where it is kept.

keys    identity of a model's keys and values, and the key of each segment of a prompt
tree    which prompts share which prefixes
plan    what is worth storing, and who computes it (pure; the controller calls it)
entry   a stored segment as bytes, with everything needed to distrust it
store   memory of the instance, then the object store
evict   what the object store no longer needs
"""
