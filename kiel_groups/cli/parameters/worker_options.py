"""The options of commands that call a worker's REST interface: ``--url`` and ``--token-file``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

__all__ = ["DEFAULT_URL", "WorkerAddress", "token_file_option", "worker_options"]

DEFAULT_URL: Final = "http://127.0.0.1:8083"

#: Others than the owner may not read, write or run a file with a secret.
_OTHERS = 0o077


class WorkerAddress(NamedTuple):
    """The URL of a worker's REST interface, and the token of the workers, or ""."""

    url: str
    token: str


def _read_token(context: click.Context, parameter: click.Parameter, path: Path | None) -> str:
    """Return the token in a file, or "" without one; warn if other users can read it."""
    from kiel_groups.errors import ConfigError
    from kiel_groups.workers.rest.rest_settings import checked_token

    if path is None or context.resilient_parsing:
        return ""
    try:
        token = path.read_text(encoding="utf-8").strip()
        is_open = bool(path.stat().st_mode & _OTHERS)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise click.BadParameter(f"{path} cannot be read: {reason}", context, parameter) from error
    if is_open:
        context.obj.say("warning", f"other users can read the token in {path}; 'chmod 600' denies it")
    try:
        return checked_token(token)
    except ConfigError as error:
        raise click.BadParameter(f"{path}: {error}", context, parameter) from error


def token_file_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--token-file``, whose value in the command is the token, or ""."""
    return click.option(
        "--token-file",
        "token",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_read_token,
        envvar="KIEL_GROUPS_TOKEN_FILE",
        show_envvar=True,
        metavar="FILE",
        help=help_text,
    )


def worker_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options to a command, whose function gets a ``WorkerAddress`` as ``worker``."""

    @click.option(
        "--url",
        default=DEFAULT_URL,
        show_default=True,
        envvar="KIEL_GROUPS_WORKER_URL",
        show_envvar=True,
        metavar="URL",
        help="The REST interface of any worker of the group.",
    )
    @token_file_option("A file with the token of the workers, if they ask for one.")
    @click.pass_context
    @wraps(command)
    def with_worker(context: click.Context, /, *, url: str, token: str, **options: Any) -> int:
        result: int = context.invoke(command, worker=WorkerAddress(url, token), **options)
        return result

    return with_worker
