"""Policies are judged by what they decide: a busy machine must not fail their tests."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
