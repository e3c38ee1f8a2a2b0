"""``kiel-groups connector-plugins``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.shared_options import json_option
from kiel_groups.cli.parameters.worker_options import WorkerAddress, worker_options
from kiel_groups.cli.terminal.exit_codes import DONE, EPILOG

__all__ = ["connector_plugins"]


@click.command("connector-plugins", epilog=EPILOG)
@worker_options
@json_option
def connector_plugins(*, worker: WorkerAddress, as_json: bool) -> int:
    """
    List the connectors that are installed at a worker.

    Other classes can be given, too: connector.class takes 'module:Class' of anything that the workers can import.
    """
    from kiel_groups.cli.sources.worker_source import WorkerSource
    from kiel_groups.cli.terminal.rendering import plain_table, show, show_json

    found = WorkerSource(worker).plugins()
    if as_json:
        show_json(found)
        return DONE
    table = plain_table("class", "type", "version")
    for plugin in found:
        table.add_row(plugin["class"], plugin["type"], plugin["version"])
    show(table)
    return DONE
