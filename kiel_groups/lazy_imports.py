"""Public names that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    The ``__getattr__`` and ``__dir__`` of a package whose names live in other modules.

    Importing every room costs a command line 0.3 s before it prints its version.

    Args:
        package: The package's name, for errors.
        homes: The module that each name lives in.
    """

    def get(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(homes)
