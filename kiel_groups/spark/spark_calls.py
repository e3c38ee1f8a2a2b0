"""
Shape what Spark gets from this package besides data: the text of errors, and pickles for workers.

Spark reports the text of Python's traceback, and a hundred lines of Java after it. The error's own line is the last
line of the traceback. But Python prints the cause of an error first. So an error leaves this package with a copy of
itself as its cause. The copy has no traceback, so its one line is also the first line of the report.

An ordinary pickle only names modules. On a worker without this package, it fails inside Spark's own code, with an
error that does not name the remedy. A ``PortablePickle`` includes the code of the function that loads it. That
function raises an error that names the missing module and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark import cloudpickle

from kiel_groups.errors import KielGroupsError

P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self")


def cause_first(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], T]:
    """
    Decorate a method that Spark calls, so that Spark's report of a KielGroupsError begins with the error's own line.

    If the method returns an iterator, the same applies to errors that the iterator raises.
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
    if "__cause__" not in vars(type(error)):
        error.__class__ = _restated(type(error))


def _restated(kind: type[KielGroupsError]) -> type[KielGroupsError]:
    """
    Return a class like ``kind`` whose errors have a copy of themselves as their cause.

    ``__cause__`` is a property, and an assignment to the property has no effect: Spark sets ``__cause__`` to None when
    Spark removes its own frames from a traceback.
    """

    def cause(error: KielGroupsError) -> KielGroupsError:
        copy = kind.__new__(kind, *error.args)
        copy.__dict__.update(error.__dict__)
        return copy

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: type[KielGroupsError] = type(
        kind.__name__, (kind,), {**names, "__cause__": property(cause, lambda error, given: None)}
    )
    return made


def unpacked(packed: bytes) -> Any:
    """
    Unpickle an object of a ``PortablePickle`` class on a worker that may not have this package.

    Raises:
        RuntimeError: A module is missing; the message names it, the host, its Python and the remedy.
    """
    import platform
    import sys

    from pyspark import cloudpickle

    try:
        kind, state = cloudpickle.loads(packed)
    except ModuleNotFoundError as error:
        # Its own copy is its cause: so the text that Spark shows begins with it, as ``cause_first`` explains.
        names = {
            "__module__": "builtins",
            "__cause__": property(lambda self: RuntimeError(*self.args), lambda *_: None),
        }
        raise type("RuntimeError", (RuntimeError,), names)(
            f"the Spark worker on {platform.node()} (Python {platform.python_version()}, {sys.executable}) has no"
            f" module {error.name}: install kiel-groups[spark] there, or ship it with the job, as"
            " docs/spark-installing.rst shows"
        ) from None
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


# cloudpickle sends functions of ``__main__`` as code, and functions of other modules by name.
unpacked.__module__ = "__main__"


class PortablePickle:
    """A base class for objects that Spark pickles. If a module is missing on a worker, the error names the module."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        packed: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return unpacked, (packed,)
