"""Help commands that change something: show the change, ask for confirmation, and save former data in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kiel_groups.cli.parameters.options import json_option
from kiel_groups.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.model import TopicPartition


class ChangeOptions(NamedTuple):
    """The options of a command that changes something: ``--json``, ``--dry-run`` and ``--yes``."""

    as_json: bool
    dry_run: bool
    yes: bool

    def show(self, document: Mapping[str, Any], *report: RenderableType) -> None:
        """
        Show a change before it is made.

        With ``--json``, print the document with ``dry_run`` added. Otherwise, print the report, if there is any.
        """
        from kiel_groups.cli.terminal.rendering import show_result

        if self.as_json or report:
            show_result({**document, "dry_run": self.dry_run}, *report, as_json=self.as_json)

    def is_confirmed(self, question: str) -> bool:
        """
        Return whether to make the change. If neither ``--dry-run`` nor ``--yes`` is given, ask the user first.

        Return False with ``--dry-run``, and otherwise True.

        Raises:
            click.UsageError: Standard input is no terminal, so that the user cannot be asked.
            click.Abort: The user has answered no.
        """
        if not self.dry_run and not self.yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise click.UsageError("there is no terminal to confirm at; give --yes.", click.get_current_context())
            click.confirm(question, abort=True, err=True)
        return not self.dry_run


def change_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add ``--json``, ``--dry-run`` and ``--yes`` to a command. Its function gets ``ChangeOptions`` as ``how``."""

    @json_option
    @click.option("--dry-run", is_flag=True, help="Show the change, and make none.")
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @wraps(command)
    def with_change(*, as_json: bool, dry_run: bool, yes: bool, **options: Any) -> int:
        return command(how=ChangeOptions(as_json, dry_run, yes), **options)

    return with_change


def restore_file_option(help_text: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option ``--restore-file``. Its value is the ``path`` for ``write_restore_file``."""
    return click.option(
        "--restore-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"{help_text}  [default: kiel-groups-GROUP-TIME.json, here]",
    )


def write_restore_file(
    path: Path | None,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    znodes: Mapping[str, str] | None = None,
    is_secret: bool = False,
) -> Path:
    """
    Write the data that a command overwrites or deletes to a new file, and return the path of the file.

    Args:
        path: The path of the file. None chooses ``restore_path``.
        group: The group.
        offsets: The former offsets of the group.
        znodes: The former data of the group's znodes; see ``OffsetsFile``.
        is_secret: Whether only the owner may read the file.

    Raises:
        ConfigError: The file exists already, or it cannot be written. The text names the option.
    """
    from kiel_groups.ops.actions.offsets_file import new_file, restore_path, write_offsets_file

    path = path or restore_path(group)
    try:
        write_offsets_file(path, new_file(group, offsets, znodes=znodes).encode(), is_secret=is_secret)
    except ConfigError as error:
        raise ConfigError(f"--restore-file: {error}; nothing has changed") from error
    return path
