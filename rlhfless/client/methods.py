"""Flows as methods of both clients.

    @answers    Client: ``f(...) -> T``           AsyncClient: ``await f(...)``
    @yields     Client: ``for x in f(...)``       AsyncClient: ``async for x in f(...)``

A class of such methods is written once, over ``Methods``; its driver says which of the two it is,
to the interpreter and to type checkers.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from rlhfless.client.flows import Flow, Items

T = TypeVar("T")
P = ParamSpec("P")


class Waiting(Protocol):
    """What performs flows for ``Client``."""

    def run(self, flow: Flow[T]) -> T: ...

    def items(self, flow: Items[T]) -> Iterator[T]: ...


class Awaiting(Protocol):
    """What performs flows for ``AsyncClient``."""

    async def run(self, flow: Flow[T]) -> T: ...

    def items(self, flow: Items[T]) -> AsyncIterator[T]: ...


Driver = TypeVar("Driver", bound=Waiting | Awaiting)


class Methods(Generic[Driver]):
    """A class with flows for methods. ``Methods[Waiting]`` waits, ``Methods[Awaiting]`` awaits."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver


class answers(Generic[P, T]):  # noqa: N801 - a decorator
    """Makes a method of a function that makes a flow; the function itself is ``flow``."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, owner: None, kind: Any) -> answers[P, T]: ...

    @overload
    def __get__(self, owner: Methods[Waiting], kind: Any) -> Callable[P, T]: ...

    @overload
    def __get__(
        self, owner: Methods[Awaiting], kind: Any
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, owner: Any, kind: Any) -> Any:
        if owner is None:
            return self
        return _bound(self.flow, owner, owner._driver.run)


class yields(Generic[P, T]):  # noqa: N801
    """As ``answers``, of a flow with items."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Items[T]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, owner: None, kind: Any) -> yields[P, T]: ...

    @overload
    def __get__(self, owner: Methods[Waiting], kind: Any) -> Callable[P, Iterator[T]]: ...

    @overload
    def __get__(self, owner: Methods[Awaiting], kind: Any) -> Callable[P, AsyncIterator[T]]: ...

    def __get__(self, owner: Any, kind: Any) -> Any:
        if owner is None:
            return self
        return _bound(self.flow, owner, owner._driver.items)


def _bound(flow: Callable[..., Any], owner: Any, perform: Callable[[Any], Any]) -> Any:
    @functools.wraps(flow)
    def method(*args: Any, **kwargs: Any) -> Any:
        return perform(flow(owner, *args, **kwargs))

    return method
