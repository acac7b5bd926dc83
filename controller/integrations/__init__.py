"""Experiment trackers and webhooks: how a job goes, told to what its owner already watches."""
