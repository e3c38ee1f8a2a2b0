"""
How readers and writers get to the workers: as bytes, with the code that unpacks them.

An ordinary pickle names modules, and where this package is missing a worker fails in the middle of Spark's own code,
with no word of what to do. The function that unpacks ours is sent itself, so it can say so.
"""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

__all__ = ["Shipped"]


def unpacked(packed: bytes) -> Any:
    """
    What ``Shipped`` has packed; on a worker, where nothing of this package may be there.

    Raises:
        RuntimeError: A module is missing; names it, the machine, its Python and the remedy.
    """
    import platform
    import sys

    from pyspark import cloudpickle

    try:
        kind, state = cloudpickle.loads(packed)
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"the Spark worker on {platform.node()} (Python {platform.python_version()}, {sys.executable}) has no"
            f" module {error.name}: install kiel-groups[spark] there, or send it along with --py-files (the package)"
            " and --archives (an environment, for what is compiled)"
        ) from None
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


# Functions of this module are sent as code, not by their names.
unpacked.__module__ = "__main__"


class Shipped:
    """An object that finds its own words where it cannot be unpacked."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __reduce__(self) -> tuple[Any, ...]:
        packed: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return unpacked, (packed,)
