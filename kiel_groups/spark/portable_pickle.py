"""
Pickle readers and writers for the workers together with the function that unpickles them.

An ordinary pickle only names modules: on a worker without this package, it fails inside of Spark's own code, without a
hint of the remedy. This pickle contains the code of the function that loads it, which can explain what is missing.
"""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

__all__ = ["PortablePickle"]


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
            f" module {error.name}: install kiel-groups[spark] there, or ship it with the job, as docs/spark.rst shows"
            " under 'Installing it'"
        ) from None
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


# cloudpickle sends functions of ``__main__`` as code, and functions of other modules by name.
unpacked.__module__ = "__main__"


class PortablePickle:
    """A base class of objects whose pickles name the missing module if a worker cannot load them."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        packed: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return unpacked, (packed,)
