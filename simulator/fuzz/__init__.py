"""Deterministic fault simulation: the real controller under thousands of seeded schedules.

``python -m simulator.fuzz`` runs seeds and replays them; ``docs/simulator.md`` says what is broken
on purpose and what must hold all the same.
"""
