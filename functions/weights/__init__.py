"""Weights by version: tensors to and from the object store, adapters, and a model that follows."""
