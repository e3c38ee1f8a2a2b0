"""``kiel-groups demo``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kiel_groups.cli.parameters.options import port_option


@click.command(epilog="Exit status: 0 proved, 1 failed or not proved, 2 a wrong option or file, 130 after Ctrl-C.")
@click.option("--keep", is_flag=True, help="Keep the cluster until Ctrl-C, and show how to look at it.")
@click.option(
    "--records",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Send the lines of this file instead of the built-in 100,000 records.",
)
@click.option(
    "--svg",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a picture of the demo to this file.",
)
@port_option("--zookeeper-port", "Port of ZooKeeper on 127.0.0.1.")
@port_option("--broker-port", "Port of Kafka on 127.0.0.1.")
def demo(*, keep: bool, records: Path | None, svg: Path | None, zookeeper_port: int, broker_port: int) -> int:
    """
    Watch a group at work on a real Kafka 0.8.2.2.

    Three processes share a topic of 32 partitions; one joins, one is killed with -9, one leaves. In the end the output
    of the consumers proves that every record was delivered at least once. Ports are free ones unless you choose them.
    """
    from rich.console import Console

    from kiel_groups.config import SECURITY_VARIABLE
    from kiel_groups.demo.demo_run import run_demo

    # Another cluster's file has no credentials for the servers of the demo.
    os.environ.pop(SECURITY_VARIABLE, None)
    return run_demo(
        Console(),
        keep=keep,
        records=records,
        picture=svg,
        zookeeper_port=zookeeper_port,
        broker_port=broker_port,
    )
