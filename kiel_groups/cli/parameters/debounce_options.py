"""The options of commands that may lead a group on ZooKeeper: how long a leader waits for a burst of changes to end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

__all__ = ["debounce_options"]

_MILLISECONDS = click.IntRange(min=0)


def debounce_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options to a command, whose function gets a ``DebounceConfig`` as ``debounce``."""

    @click.option(
        "--debounce-ms",
        type=_MILLISECONDS,
        default=100,
        show_default=True,
        metavar="MS",
        help="Plan when nothing has changed for this long …",
    )
    @click.option(
        "--debounce-bound-ms",
        type=_MILLISECONDS,
        default=1_000,
        show_default=True,
        metavar="MS",
        help="… and at the latest this long after the first change.",
    )
    @click.option(
        "--initial-delay-ms",
        type=_MILLISECONDS,
        default=300,
        show_default=True,
        metavar="MS",
        help="How long a new leader waits for members to join before it plans.",
    )
    @click.pass_context
    @wraps(command)
    def with_debounce(
        context: click.Context,
        /,
        *,
        debounce_ms: int,
        debounce_bound_ms: int,
        initial_delay_ms: int,
        **options: Any,
    ) -> int:
        from kiel_groups.config import DebounceConfig
        from kiel_groups.errors import ConfigError

        if debounce_ms > debounce_bound_ms:
            raise ConfigError(
                f"--debounce-ms: {debounce_ms} given; expected at most --debounce-bound-ms, which is"
                f" {debounce_bound_ms}"
            )
        debounce = DebounceConfig(quiet_ms=debounce_ms, bound_ms=debounce_bound_ms, initial_delay_ms=initial_delay_ms)
        result: int = context.invoke(command, debounce=debounce, **options)
        return result

    return with_debounce
