"""Functions that a command is given by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

from kiel_groups.allocators import ALLOCATORS, Allocator, named_allocator
from kiel_groups.errors import ConfigError

__all__ = ["load_allocator", "load_function"]


def load_allocator(name: str | None, setting: str) -> Allocator | None:
    """
    An allocator by its name, or a function of the user's.

    Args:
        name: One of ``ALLOCATORS``, or ``module:function``; None for the default.
        setting: What to call it in an error.

    Raises:
        ConfigError: There is no allocator of that name, or the function cannot be had.
    """
    if name is None:
        return None
    if ":" in name or name in ALLOCATORS:
        return ALLOCATORS.get(name) or load_function(name, setting)
    try:
        return named_allocator(name, setting)
    except ConfigError as error:
        told = str(error)
        joint = " A" if told.endswith("?") else "; a"
        raise ConfigError(f"{told}{joint} function of yours is named 'module:function'") from None


def load_function(name: str, setting: str) -> Callable[..., Any]:
    """
    Import a function; its module may lie in the current folder.

    Args:
        name: ``module:function``.
        setting: What to call it in an error.

    Raises:
        ConfigError: It is not of that form, cannot be imported, is not there, or cannot be called.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(f"{setting}: {name!r} given; expected 'module:function'")
    # An installed command, unlike `python -m`, does not look where it was started.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = attrgetter(function_name)(_imported(module_name, setting))
    except AttributeError:
        raise ConfigError(f"{setting}: module {module_name!r} has no {function_name!r}") from None
    if not callable(found):
        raise ConfigError(f"{setting}: {name!r} is a value of type {type(found).__name__}; expected a function")
    function: Callable[..., Any] = found
    return function


def _imported(name: str, setting: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{setting}: there is no module {name!r}, neither in {os.getcwd()} nor where Python looks for packages"
            ) from error
        raise ConfigError(f"{setting}: {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # a module may do anything while it is imported
        raise ConfigError(f"{setting}: {name!r} cannot be imported: it raised {error!r}") from error
