"""Build loops on both forms of their steps: in C, as they are where a compiler was found, and in Python."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import pytest

from kiel_groups.clients.delivery import record_loop as record_steps

__all__ = ["STEPS", "on_python_steps"]

T = TypeVar("T")

#: The forms, for tests that are run with each.
STEPS = [
    pytest.param(
        True, id="compiled", marks=pytest.mark.skipif(not record_steps.COMPILED, reason="there was no C compiler")
    ),
    pytest.param(False, id="in Python"),
]


def on_python_steps(kind: type[T], base: type[Any]) -> type[T]:
    """Return a class with the attributes of the loop ``kind``, and the steps ``base``."""
    slots = (*getattr(kind, "__slots__", ()), "__dict__", "__weakref__")
    namespace = {name: value for name, value in vars(kind).items() if name not in slots}
    return cast(type[T], type(kind.__name__, (base,), namespace))
