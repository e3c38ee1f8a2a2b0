"""``kiel-groups demo``."""

from __future__ import annotations

import click

__all__ = ["demo"]


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up afterwards, until Ctrl-C, and say how to look at it.")
def demo(keep: bool) -> int:
    """
    Three processes share a topic of a real Kafka 0.8.2.2; one joins, one is killed with -9, one leaves.

    Ends by proving, from what the consumers wrote, that every record was delivered at least once. Exit status 1 when
    that fails.
    """
    from rich.console import Console

    from kiel_groups.demo.run import run_demo

    return run_demo(Console(), keep=keep)
