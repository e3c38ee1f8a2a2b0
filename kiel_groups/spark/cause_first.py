"""
Put the cause of a failure into the first line of the text that Spark reports.

Spark passes on the text of Python's traceback, which ends with the error's own line; a hundred lines of Java follow. An
error that was raised from another one is printed after that. So errors leave this package as if they had been raised
from a copy of themselves without a traceback, which prints as its one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from kiel_groups.errors import KielGroupsError

__all__ = ["cause_first"]

P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self")


def cause_first(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], T]:
    """
    Decorate a method that Spark calls, so that Spark's report of a KielGroupsError begins with the error's own line.

    If the method returns an iterator, this also applies to errors that the iterator raises.
    """

    @wraps(method)
    def call(self: Self, /, *args: P.args, **named: P.kwargs) -> T:
        try:
            result = method(self, *args, **named)
        except KielGroupsError as error:
            _restate(error)
            raise
        return _yielded(result) if isinstance(result, Iterator) else result  # type: ignore[return-value]

    return call


def _yielded(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except KielGroupsError as error:
        _restate(error)
        raise


def _restate(error: KielGroupsError) -> None:
    if not isinstance(error, _Restated):
        error.__class__ = _restated(type(error))


class _Restated:
    """The base of the classes that ``_restated`` makes."""


def _restated(kind: type[KielGroupsError]) -> type[KielGroupsError]:
    """
    Return a class like ``kind`` whose errors have a copy of themselves as their cause.

    An ordinary cause would not do: Spark sets it to None where it leaves frames of its own out of the traceback.
    """

    def cause(error: KielGroupsError) -> KielGroupsError:
        copy = kind.__new__(kind, *error.args)
        copy.__dict__.update(error.__dict__)
        return copy

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: type[KielGroupsError] = type(
        kind.__name__, (kind, _Restated), {**names, "__cause__": property(cause, lambda error, given: None)}
    )
    return made
