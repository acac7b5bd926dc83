"""Functions whose computing is slept instead of done: real processes, streams, steering and bytes,
and the times of a model on accelerators that this machine has not.

``pace``      how long what takes, and the clock that makes it take so long
``model``     what the pretended model says: lengths and tokens of a recorded workload
``decoder``   that model as a decoder of the rollout function's own decode loop
``rollout`` ``scoring`` ``training``   the functions (``module:create``)
"""
