"""Import a class by its name, ``module:Class`` or ``package.module.Class``."""

from __future__ import annotations

from importlib import import_module

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.secret_texts import error_texts

__all__ = ["full_name", "load_class"]


def full_name(cls: type) -> str:
    """Return the name by which ``load_class`` finds a class that is defined at the top of a module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def load_class(name: str) -> type:
    """
    Import a class.

    Args:
        name: ``module:Class``, or the dotted name of the class.

    Raises:
        ConfigError: The text is no such name, the module cannot be imported, or it has no such class. The text has the
            error of the import, whatever the module raises.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon:
        module_name, _, class_name = name.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in (*module_name.split("."), *class_name.split("."))):
        raise ConfigError(f"{name!r} is not the name of a class; expected 'module:Class' or 'package.module.Class'")
    try:
        found: object = import_module(module_name)
        # The module may have a ``__getattr__`` of its own, which imports more.
        for part in class_name.split("."):
            found = getattr(found, part, None)
    except KeyboardInterrupt:
        raise
    # A module may raise anything when it is imported, and may even exit. Errors of test frameworks and of extensions in
    # Rust are no ``Exception``.
    except BaseException as error:
        text = error_texts(error).summary
        raise ConfigError(f"{name!r}: cannot import {module_name!r}: {type(error).__name__}: {text}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{name!r}: the module {module_name!r} has no class {class_name!r}")
    return found
