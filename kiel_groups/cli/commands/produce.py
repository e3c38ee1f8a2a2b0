"""``kiel-groups produce``."""

from __future__ import annotations

from pathlib import Path

import click

from kiel_groups.cli.parameters.options import (
    brokers_option,
    coordination_option,
    key_separator_option,
    quiet_option,
    separator_bytes,
    topic_argument,
    verbose_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.clients.produce.partitioners import PARTITIONERS
from kiel_groups.errors import KielGroupsError

#: The most records of a partition in one batch, and how long the first record waits for more, in milliseconds.
_BATCH_SIZE = 1_000
_LINGER_MS = 5
#: Loggers of failures that this command reports itself, with the numbers of lines.
REPORTED_BY_LINE = tuple(f"kiel_groups.clients.{name}" for name in ("produce.placement", "produce.sender", "producer"))


@click.command(epilog=EPILOG)
@topic_argument
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@brokers_option
@coordination_option(
    "What a shell asks for the names of topics when it completes them; records go to brokers in any case."
)
@key_separator_option
@click.option(
    "--null", metavar="TEXT", help="Send a value that equals TEXT as null, which deletes its key on compaction."
)
@click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4"]),
    default="none",
    show_default=True,
    help="How to compress batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="all: stored by all replicas in sync; 1: stored by the leader; 0: sent, without an answer.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Send to this partition only.")
@click.option(
    "--partitioner",
    type=click.Choice(PARTITIONERS),
    default="hash",
    show_default=True,
    help="Equal keys go to the same partition, by librdkafka's hash (hash) or Java's (murmur2, sticky); random: to any."
    " Without a key: to any, and 100 records in a row to the same one (sticky).",
)
@quiet_option
@verbose_option
@click.pass_obj
def produce(
    lines: Lines,
    /,
    *,
    topic: str,
    file: Path | None,
    brokers: str,
    coordination: str,
    key_separator: str | None,
    null: str | None,
    codec: str,
    acks: str,
    partition: int | None,
    partitioner: str,
    quiet: bool,
    verbose: bool,
) -> int:
    """
    Send the lines of FILE, or of standard input, as records to TOPIC.

    A summary on standard error says how many were stored, and which lines were not. Ctrl-C stops reading; lines that
    were read are sent first.
    """
    import asyncio

    from kiel_groups.cli.terminal.line_sender import LineSender, check_topic, open_input, progress, summarize
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.clients import Producer
    from kiel_groups.config import check_name

    check_name(topic, "topic")
    show_logs(lines, verbose=verbose, reported_elsewhere=REPORTED_BY_LINE)
    source = open_input(None if file is None or str(file) == "-" else file)
    producer = Producer(
        brokers,
        partitioner=partitioner,
        batch_size=_BATCH_SIZE,
        linger_ms=_LINGER_MS,
        compression=None if codec == "none" else codec,
        required_acks=-1 if acks == "all" else int(acks),
    )
    sending = LineSender(
        producer,
        topic,
        key_separator=separator_bytes(key_separator),
        null=None if null is None else null.encode(),
        partition=partition,
        say=lambda text: lines.say("error", text),
    )
    if source.is_terminal and not quiet:
        lines.say("info", "each line becomes a record; Ctrl-D ends")
    try:
        with progress(source, sending, quiet=quiet):
            status = asyncio.run(sending.run(source))
        if not sending.read:
            # Without any record, nothing has checked that the topic exists.
            asyncio.run(check_topic(brokers, topic))
    except KielGroupsError:
        if sending.stored or sending.unknown:
            summarize(lines, sending, acks=acks, quiet=quiet)
        raise
    summarize(lines, sending, acks=acks, quiet=quiet)
    return status or (FAILED if sending.failed or sending.unknown else DONE)
