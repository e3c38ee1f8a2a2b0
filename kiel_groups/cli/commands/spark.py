"""``kiel-groups spark``: jobs on Spark."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups, complete_topics
from kiel_groups.cli.parameters.options import (
    brokers_option,
    json_option,
    optional_brokers_option,
    optional_zookeeper_option,
    quiet_option,
    verbose_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, EPILOG_OF_ARCHIVES, FAILED, WITH_LOSSES, Lines
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from kiel_groups.spark import ArchivePlan, ArchiveSettings, ArchiveSummary
    from kiel_groups.spark.checkpoint import Loss, OffsetRange
    from kiel_groups.spark.spark_session import Batch


#: The data source's names in errors, and the options of this command.
_OPTIONS = {
    "kafka.bootstrap.servers": "--brokers",
    "kafka.group.id": "--group",
    "kiel.zookeeper.connect": "--zookeeper",
    "startingOffsets": "--start",
    "subscribePattern": "--pattern",
    "subscribe: ": "TOPIC: ",
    "maxOffsetsPerTrigger": "--batch-records",
    "interval_s": "--every",
    "set failOnDataLoss to false": "give --allow-loss",
    "set is_only_run": "give --only-run",
    "set bad_records to 'quarantine' or 'skip'": "give --bad-records quarantine or skip",
}


#: The settings with which errors begin, and the options of this command.
_SETTINGS = ("output", "checkpoint", "brokers", "roll", "time_field", "schema", "bad_records")
_NAMES = {"topics": "TOPIC", **{name: f"--{name.replace('_', '-')}" for name in _SETTINGS}}


def _read_schemas(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return the contents of the files in ``--schema``, by topic. Raise BadParameter for a value of another form."""
    texts = {}
    for text in given:
        topic, equals, file = text.partition("=")
        if not equals or not topic or topic in texts:
            raise click.BadParameter(f"{text!r} given; expected TOPIC=FILE, once for each topic.", context, parameter)
        texts[topic] = click.File(encoding="utf-8").convert(file, parameter, context).read()
    return texts


@click.group(epilog=EPILOG)
def spark() -> None:
    """Copy topics into Parquet on Spark, and verify the copies."""


@spark.command(epilog=EPILOG_OF_ARCHIVES)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Instead of TOPIC: all topics whose names have a match of this, except Kafka's own.",
)
@click.option(
    "--output",
    required=True,
    metavar="FOLDER",
    help="Where to write: a path, or a URI that Spark supports, as hdfs://…",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Where Spark stores the progress of the archive.  [default: _checkpoint in the output]",
)
@brokers_option
@optional_zookeeper_option
@click.option(
    "--group",
    metavar="NAME",
    help="Commit what is archived for this group.  [default: a group of the archive itself]",
    shell_complete=complete_groups,
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest", "group"]),
    default="earliest",
    show_default=True,
    help="Where the first run starts: at the starts or the ends of the logs, or at the offsets of --group.",
)
@click.option(
    "--batch-records",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most records in a batch; with --every it limits the rate.  [default: 5,000,000; needs Spark 4.2]",
)
@click.option(
    "--file-mb",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write one file for each N MB of a topic's log in a batch.  [default: 128]",
)
@click.option(
    "--roll",
    type=click.Choice(["day", "hour"]),
    default="day",
    show_default=True,
    help="Whether a topic has a folder for each day, or for each hour.",
)
@click.option(
    "--time-field",
    metavar="NAME[:FORMAT]",
    help="Choose the folder by the time in this field of JSON values. FORMAT is iso, s, ms, or a pattern of Spark."
    "  [default: by arrival; FORMAT: iso]",
)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    callback=_read_schemas,
    metavar="TOPIC=FILE",
    help="Make columns of the fields of a topic's JSON values that FILE names, as 'user STRING, amount DOUBLE'; can be"
    " repeated.",
)
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Continue with a warning if records were deleted before they were archived, by retention or with their topic.",
)
@click.option(
    "--bad-records",
    type=click.Choice(["fail", "skip", "quarantine"]),
    default="fail",
    show_default=True,
    help="At a damaged message, or a value that does not fit --schema, 'fail' ends the copy of its topic, 'skip' notes"
    " its offset in _quarantine, and 'quarantine' also keeps its bytes there.",
)
@click.option(
    "--only-run",
    "is_only_run",
    is_flag=True,
    help="No other run of this archive is active: if a topic fails, continue without it also where no lock shows that.",
)
@click.option("--every", metavar="TIME", help="Run until Ctrl-C, with a batch every 30s, 5m, …")
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]; in spark-submit, its own]")
@click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; can be repeated.")
@click.option("--dry-run", is_flag=True, help="Print what would be read, and where it would be written; do neither.")
@json_option
@quiet_option
@verbose_option
@click.pass_context
def archive(
    context: click.Context,
    /,
    *,
    master: str | None,
    settings: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    schemas: Mapping[str, str],
    **options: Any,
) -> int:
    """
    Copy topics into Parquet, every record exactly once.

    The first run copies all records of the topics. Each later run copies the records that have arrived since. A later
    run may name more topics, or fewer.

    Files are in folders topic=…/date=…, by the date of the run, or by the time in a field (--time-field). At Ctrl-C,
    the run ends after the current batch; at a second Ctrl-C, it ends at once. The next run continues there, and neither
    loses nor repeats records.

    If a topic cannot be read, the others are copied all the same. The exit status is 1 then, and the next run tries
    that topic again. The exit status is 3 if records were lost before the run could copy them, which --allow-loss
    permits.
    """
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.cli.terminal.rendering import show_json
    from kiel_groups.spark.environment import check_libraries

    lines = context.ensure_object(Lines)
    show_logs(lines, verbose=verbose)
    if not verbose:
        logging.getLogger().addFilter(_is_not_from_py4j)
    check_libraries()
    if bool(options["topics"]) == (options["pattern"] is not None):
        raise click.UsageError("Name topics, or give --pattern, and not both.", context)
    every = options.pop("every")
    options["fail_on_data_loss"] = not options.pop("allow_loss")
    for name in ("batch_records", "file_mb"):
        if options[name] is None:
            del options[name]
    with _translated_errors(), _spark_log(lines, verbose=verbose) as log:
        from kiel_groups.spark import ArchiveSettings, plan_archive
        from kiel_groups.spark.columns import is_json, parse_schema
        from kiel_groups.spark.options import duration_ms
        from kiel_groups.spark.spark_session import settings_of, start_session, stop_session

        settings_of(settings)  # A dry run may start no session, and checks them all the same.
        wanted = ArchiveSettings(interval_s=every and duration_ms("--every", every) / 1000, **options)
        session = None
        try:
            # Only Spark can read other folders, and schemas that are no JSON.
            if not wanted.is_local or not all(map(is_json, schemas.values())):
                session = start_session("archive", master=master, settings=settings, log=log)
            wanted = replace(wanted, schemas={topic: parse_schema(text) for topic, text in schemas.items()})
            plan = plan_archive(wanted, session)
            if dry_run:
                for loss in plan.lost:
                    lines.say("warning", str(loss))
                show_json(plan_document(plan)) if as_json else click.echo("\n".join(plan_lines(plan)))
                return FAILED if plan.not_archived else DONE
            session = session or start_session("archive", master=master, settings=settings, log=log)
            return _run(lines, session, wanted, plan, as_json=as_json, quiet=quiet)
        finally:
            if session is not None:
                stop_session(session)


@spark.command(epilog=EPILOG)
@click.option("--output", required=True, metavar="FOLDER", help="The archive: a path, or a URI, as s3://…")
@click.option(
    "--checkpoint", metavar="FOLDER", help="The progress of the archive.  [default: where the archive says that it is]"
)
@optional_brokers_option
@optional_zookeeper_option
@json_option
def verify(*, output: str, checkpoint: str | None, brokers: str | None, zookeeper: str | None, as_json: bool) -> int:
    """
    Check that an archive has every record once.

    The command compares the offsets that the batches planned with the files, the quarantine and the noted losses. With
    --brokers, it compares them with the logs, too; with --zookeeper, it recognises topics that were created again. It
    prints each range of offsets that differs, and exits with 1 if nothing explains the difference. It needs no Spark,
    and changes nothing.
    """
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.cli.terminal.verification_report import verification_document, verification_report
    from kiel_groups.spark.environment import check_libraries

    check_libraries()
    with _translated_errors():
        from kiel_groups.spark import verify_archive

        found = verify_archive(output, checkpoint=checkpoint, brokers=brokers, zookeeper=zookeeper)
    show_result(verification_document(found), *verification_report(found), as_json=as_json)
    return DONE if found.is_complete else FAILED


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    """
    Return whether a log record comes from another package than py4j.

    py4j uses the root logger, so only the path of the code identifies its records.
    """
    return "py4j" not in Path(record.pathname).parts


def _run(
    lines: Lines, session: Any, settings: ArchiveSettings, plan: ArchivePlan, *, as_json: bool, quiet: bool
) -> int:
    from kiel_groups.cli.terminal.rendering import show_json
    from kiel_groups.cli.terminal.termination import BlockingTermination
    from kiel_groups.spark import archive as archive_topics

    ending = BlockingTermination()
    if not quiet:
        threading.Thread(target=_report_ending, args=(lines, ending.asked), daemon=True).start()
    total = plan.records if settings.interval_s is None else None
    with progress(lines, total, quiet=quiet) as show:
        summary = archive_topics(session, settings, on_batch=show, stopping=ending.asked)
    if as_json:
        show_json(summary_document(summary))
    elif not quiet:
        click.echo("\n".join(summary_lines(summary)))
    for topic, reason in summary.not_archived.items():
        lines.say("error", f"{topic} is not archived to its end: {_translated(reason)}")
    return ending.status or (FAILED if summary.not_archived else WITH_LOSSES if summary.lost else DONE)


def _report_ending(lines: Lines, asked: threading.Event) -> None:
    # This runs on a thread, because a signal handler may have interrupted code that is printing.
    asked.wait()
    lines.say("info", "ending after the current batch; a second Ctrl-C ends at once, and loses nothing either")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Replace the names of settings in error messages from the block by the options of the command line."""
    try:
        yield
    except KielGroupsError as error:
        if type(error) is KielGroupsError or isinstance(error, ConfigError | OffsetOutOfRangeError):
            raise type(error)(_translated(str(error))) from error
        raise


def _translated(text: str) -> str:
    for theirs, ours in _OPTIONS.items():
        text = text.replace(theirs, ours)
    name, colon, rest = text.partition(": ")
    return f"{_NAMES[name]}: {rest}" if colon and name in _NAMES else text


@contextmanager
def _spark_log(lines: Lines, *, verbose: bool) -> Iterator[Path | None]:
    """
    Yield the path of a temporary file for Spark's log. With ``verbose``, yield None: Spark then logs to standard error.

    The file is deleted at the end, unless it has content and the block raises a KielGroupsError other than ConfigError.
    Then its path is printed.
    """
    if verbose:
        yield None
        return
    descriptor, name = tempfile.mkstemp(prefix="kiel-groups-spark-", suffix=".log")
    os.close(descriptor)
    log, failed = Path(name), False
    try:
        yield log
    except ConfigError:
        raise
    except KielGroupsError:
        failed = log.stat().st_size > 0
        raise
    finally:
        if failed:
            lines.say("info", f"Spark's own log is in {log}")
        else:
            log.unlink(missing_ok=True)


@contextmanager
def progress(lines: Lines, total: int | None, *, quiet: bool) -> Iterator[Callable[[Batch], None]]:
    """
    Show the progress of an archive run within the block, and yield a function to call after each batch.

    Args:
        lines: Prints a line for each batch if no bar can be shown.
        total: The most records to archive, or None for a run without an end.
        quiet: Whether to show nothing.
    """
    if quiet:
        yield lambda batch: None
        return
    count = _Count(total)
    from kiel_groups.cli.terminal.rendering import bar, has_bar

    if not has_bar():
        yield lambda batch: lines.say("info", count.add(batch))
        return
    with bar(total, "starting") as show:
        yield lambda batch: show(count.add(batch), count.records)


class _Count:
    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began_s = time.monotonic()
        self.records = 0

    def add(self, batch: Batch) -> str:
        """Count one more batch, and return a text about the progress so far."""
        self.records += batch.records
        left = batch.left
        if left is None and self._total is not None:
            left = max(0, self._total - self.records)
        rate = self.records / max(time.monotonic() - self._began_s, 1e-3)
        text = f"{self.records:,} records, {rate:,.0f} records/s"
        return text if left is None else f"{text}, {left:,} left"


_MOST_PARTITIONS = 4


def plan_lines(plan: ArchivePlan) -> Iterator[str]:
    """Yield lines that describe a plan: the offsets to read, the topics left out, and the folders to write."""
    yield f"would read {counted(plan.records, 'record')} at most"
    yield from _topic_lines(plan.ranges)
    yield from _lost_lines(plan.lost)
    for topic, reason in plan.not_archived.items():
        yield f"not {topic}, which would be tried again: {_translated(reason)}"
    yield from _dropped_lines(plan)
    yield f"into {plan.output}, {'a new' if plan.is_new else 'an existing'} archive; checkpoint {plan.checkpoint}"


def plan_document(plan: ArchivePlan) -> dict[str, Any]:
    """Return the plan of an archive run as a JSON document."""
    return {
        "records": plan.records,
        "topics": _topics(plan.ranges),
        "lost": lost_document(plan.lost),
        **_left_out_document(plan),
        "output": plan.output,
        "checkpoint": plan.checkpoint,
        "new": plan.is_new,
    }


def summary_lines(summary: ArchiveSummary) -> Iterator[str]:
    """Yield lines that describe a run: the archived records, the new files, the commit, losses and bad records."""
    from rich.filesize import decimal

    bad = [row.loss for row in summary.bad_records]
    if not summary.records:
        yield f"archived nothing new in {summary.took_s:.1f} s"
        yield from _topic_lines(summary.ranges, [*summary.lost, *bad])
        yield f"into {summary.output}: no new files"
    else:
        rate = summary.records / max(summary.took_s, 1e-3)
        yield f"archived {counted(summary.records, 'record')} in {summary.took_s:.1f} s, {rate:,.0f} records/s"
        yield from _topic_lines(summary.ranges, [*summary.lost, *bad])
        yield f"into {summary.output}: {counted(summary.files, 'new file')}, {decimal(summary.size_bytes)}"
    if summary.untimed:
        yield f"{counted(summary.untimed, 'record')} without a time in --time-field: in the folders of their arrival"
    if summary.group is not None:
        yield f"committed for the group {summary.group}"
    yield from _lost_lines(summary.lost)
    if summary.lost:
        yield f"each loss with its reason is in {summary.output}/_losses"
    if bad:
        yield from _lost_lines(bad, "bad records, not in the table: ")
        yield f"each with its reason is in {summary.output}/_quarantine"
    yield from _dropped_lines(summary)


def _dropped_lines(report: ArchivePlan | ArchiveSummary) -> Iterator[str]:
    if report.dropped:
        yield f"no longer named, kept at the reached offsets: {some(report.dropped)}"


def _left_out_document(report: ArchivePlan | ArchiveSummary) -> dict[str, Any]:
    return {
        "not_archived": {topic: _translated(reason) for topic, reason in report.not_archived.items()},
        "dropped": list(report.dropped),
    }


def summary_document(summary: ArchiveSummary) -> dict[str, Any]:
    """Return the summary of an archive run as a JSON document. ``took_s`` is in seconds."""
    return {
        "records": summary.records,
        "topics": _topics(summary.ranges),
        "lost": lost_document(summary.lost),
        "bad_records": lost_document([row.loss for row in summary.bad_records]),
        **_left_out_document(summary),
        "output": summary.output,
        "files": summary.files,
        "bytes": summary.size_bytes,
        "took_s": round(summary.took_s, 3),
        "untimed": summary.untimed,
        "group": summary.group,
    }


def _topic_lines(ranges: Iterable[OffsetRange], lost: Sequence[Loss] = ()) -> Iterator[str]:
    """Yield a line for each topic with its ranges. The count of offsets leaves out the offsets in ``lost``."""
    for topic, found in groupby(ranges, lambda each: each.topic_partition.topic):
        parts = list(found)
        offsets = sum(each.size - _lost_offsets(lost, each) for each in parts)
        shown = [f"{each.topic_partition.partition}: {each.start}–{each.end}" for each in parts[:_MOST_PARTITIONS]]
        more = ", …" if len(parts) > _MOST_PARTITIONS else ""
        counts = f"{counted(offsets, 'offset')} in {counted(len(parts), 'partition')}"
        yield f"  {topic}: {counts} ({', '.join(shown)}{more})"


def _lost_lines(lost: Sequence[Loss], what: str = "lost ") -> Iterator[str]:
    """Yield a line with the number of lost offsets, and a line for each topic with its first lost ranges."""
    if not lost:
        return
    known = [counted(_lost_offsets(lost), "offset")] if any(loss.end is not None for loss in lost) else []
    unknown = ["the rest of deleted logs, if they had more"] if any(loss.end is None for loss in lost) else []
    yield f"{what}{' and '.join(known + unknown)}:"
    for topic, found in groupby(lost, lambda each: each.topic_partition.topic):
        parts = [
            f"{each.topic_partition.partition}: {each.start}–{'?' if each.end is None else each.end}" for each in found
        ]
        more = ", …" if len(parts) > _MOST_PARTITIONS else ""
        yield f"  {topic}: {', '.join(parts[:_MOST_PARTITIONS])}{more}"


def _lost_offsets(lost: Iterable[Loss], within: OffsetRange | None = None) -> int:
    """
    Return the number of lost offsets. Each offset counts once, and losses without a known end do not count.

    With ``within``, count only the offsets in this range of the same log.
    """
    from kiel_groups.spark.archive_coverage import common, layers, size

    log = attrgetter("topic_partition", "incarnation")
    by_log: dict[Any, list[tuple[int, int]]] = {}
    for loss in lost:
        if loss.end is not None and (within is None or log(loss) == log(within)):
            by_log.setdefault(log(loss), []).append((loss.start, loss.end))
    once = [layers(ranges)[:1] for ranges in by_log.values()]
    return sum(size(each if within is None else common(each, [within[1:3]])) for layer in once for each in layer)


def lost_document(lost: Sequence[Loss]) -> dict[str, Any]:
    """
    Return losses as a JSON document.

    ``offsets`` is the number of lost offsets, without losses of unknown length. ``topics`` has the lost ranges by topic
    and partition. In a range, ``to`` is exclusive, or null if the end of the lost log is unknown.
    """
    topics: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for loss in lost:
        ranges = topics.setdefault(loss.topic_partition.topic, {}).setdefault(str(loss.topic_partition.partition), [])
        ranges.append({"from": loss.start, "to": loss.end, "incarnation": loss.incarnation, "reason": loss.reason})
    return {"offsets": _lost_offsets(lost), "topics": topics}


def _topics(ranges: Iterable[OffsetRange]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the ranges by topic and partition for a JSON document. ``to`` is exclusive."""
    return {
        topic: {str(each.topic_partition.partition): {"from": each.start, "to": each.end} for each in found}
        for topic, found in groupby(ranges, lambda each: each.topic_partition.topic)
    }
