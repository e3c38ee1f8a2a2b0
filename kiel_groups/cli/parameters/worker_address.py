"""Define the options for files with tokens, and those of commands that send requests to a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from kiel_groups.errors import ConfigError

DEFAULT_URL: Final = "http://127.0.0.1:8083"


class WorkerAddress(NamedTuple):
    """The URL of a worker's REST interface, and the token of the workers, or "" if they need no token."""

    url: str
    token: str


def _read_token(context: click.Context, parameter: click.Parameter, path: Path | None) -> str:
    """
    Return the token in the file of an option, or "" without a file; see ``read_token``.

    Raises:
        click.BadParameter: The file cannot be read, or its token is not valid.
    """
    if path is None or context.resilient_parsing:
        return ""
    try:
        return read_token(path, lambda text: context.obj.say("warning", text))
    except ConfigError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def read_token(path: Path, warn: Callable[[str], object]) -> str:
    """
    Return the token in a file. Call ``warn`` with a text if other users can read the file.

    Raises:
        ConfigError: The file cannot be read, or its token is not valid.
    """
    from kiel_groups.rest.settings import checked_token

    try:
        token = path.read_text(encoding="utf-8").strip()
        warn_if_open(path, warn)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    try:
        return checked_token(token)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('token: ')}") from error


def warn_if_open(path: Path, warn: Callable[[str], object]) -> None:
    """
    Call ``warn`` with a text if other users can read a file with a secret.

    Raises:
        OSError: The file is not accessible.
    """
    from kiel_groups.security_file import is_open

    if is_open(path):
        warn(f"other users can read the secret in {path}; 'chmod 600' denies it")


def token_file_option(help_text: str, name: str = "token-file") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return the option ``--token-file``, or another ``name``, for a file with a token or key.

    The command gets the token in the file as ``token``, or for ``--x-secret-file`` as ``x_secret``. It gets "" without
    a file.
    """
    return click.option(
        f"--{name}",
        name.removesuffix("-file").replace("-", "_"),
        type=click.Path(path_type=Path, dir_okay=False),
        callback=_read_token,
        envvar="KIEL_GROUPS_TOKEN_FILE" if name == "token-file" else None,
        show_envvar=True,
        metavar="FILE",
        help=help_text,
    )


def worker_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add ``--url`` and ``--token-file`` to a command. Its function gets a ``WorkerAddress`` as ``worker``."""

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
