"""Import a package's public names when they are first used (PEP 562)."""

from __future__ import annotations

#: ``typing`` itself takes longer to import than the packages that use this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Return ``__getattr__`` and ``__dir__`` for a package whose names are defined in other modules.

    To import all these modules at once would cost every command 0.3 s, even a command that only prints its version.

    Args:
        package: The package's name, for errors.
        homes: The names that each module defines.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in modules:
            from importlib import import_module

            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(modules)
