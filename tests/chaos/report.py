"""The report of a run: a table for people, and JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.checker import Finding, Gap, Limits, gaps
from tests.chaos.history import History, Inflicted
from tests.chaos.run import Result
from tests.chaos.schedule import KINDS, Schedule

__all__ = ["make_report", "print_report"]

#: How many findings of each kind are printed. The JSON file has all findings.
MOST_PRINTED = 5


def make_report(schedule: Schedule, result: Result, findings: list[Finding], limits: Limits) -> dict[str, Any]:
    """Return the report of a run, ready for JSON."""
    history = result.history
    deliveries = Counter((delivery.partition, delivery.offset) for delivery in history.deliveries)
    found = gaps(history)
    return {
        "seed": schedule.seed,
        "faults_scheduled": len(schedule.faults),
        "faults_inflicted": len(history.faults),
        "interrupted": result.interrupted,
        "failure": result.failure,
        "wall_s": round(result.wall_s, 1),
        "session_timeout_s": schedule.session_timeout_s,
        "limits": limits._asdict(),
        "records_acknowledged": len(history.acknowledged),
        "records_delivered": len(deliveries),
        "duplicates": len(history.deliveries) - len(deliveries),
        "processes": len(history.processes),
        "hand_overs": sum(_hand_overs(history).values()),
        "commits": len(history.commits),
        "longest_unowned_s": _longest(found, "lasted_s"),
        "longest_unowned_quiet_s": _longest(found, "quiet_s"),
        "by_kind": list(_by_kind(history, found)),
        "repairs": result.repairs,
        "findings": [finding._asdict() for finding in findings],
    }


def _by_kind(history: History, found: list[Gap]) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of fault. An event counts for the last fault that started before it."""
    causes = _Causes(history.faults)
    gaps_of: dict[str, list[Gap]] = {}
    for gap in found:
        gaps_of.setdefault(causes.of(gap.since_s), []).append(gap)
    moved = Counter(causes.of(at_s) for at_s in _hand_overs(history).elements())
    repeated = Counter(causes.of(at_s) for at_s in _repeats(history))
    for kind in KINDS:
        faults = [fault for fault in history.faults if fault.kind == kind]
        if faults:
            lasted = [fault.ended_s - fault.began_s for fault in faults if fault.ended_s is not None]
            yield {
                "kind": kind,
                "faults": len(faults),
                "longest_s": round(max(lasted, default=0.0), 1),
                "hand_overs": moved[kind],
                "duplicates": repeated[kind],
                "longest_unowned_s": _longest(gaps_of.get(kind, []), "lasted_s"),
            }


class _Causes:
    """Attributes each time to the last fault that started before it."""

    def __init__(self, faults: list[Inflicted]) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.began_s)

    def of(self, at_s: float) -> str:
        before = [fault.kind for fault in self._faults if fault.began_s <= at_s]
        return before[-1] if before else "start"


def _hand_overs(history: History) -> Counter[float]:
    """Count the changes of owners by time."""
    moments: Counter[float] = Counter()
    for partition in range(history.partitions):
        owners = [ownership for ownership in history.ownerships if ownership.partition == partition]
        moments.update(after.since_s for before, after in pairwise(owners) if before.session != after.session)
    return moments


def _repeats(history: History) -> Iterator[float]:
    """Yield the times of deliveries of records that had been delivered before."""
    known: set[tuple[int, int]] = set()
    for delivery in history.deliveries:
        record = (delivery.partition, delivery.offset)
        if record in known:
            yield delivery.start_s
        known.add(record)


def _longest(found: list[Gap], of: str) -> float:
    return round(max((getattr(gap, of) for gap in found), default=0.0), 2)


def print_report(console: Console, report: dict[str, Any]) -> None:
    """Print the table, the figures and the findings."""
    table = Table(title=f"seed {report['seed']}: {report['faults_inflicted']} of {report['faults_scheduled']} faults")
    table.add_column("fault", no_wrap=True)
    for name in ("times", "longest [s]", "hand-overs", "repeats", "unowned [s]"):
        table.add_column(name, justify="right")
    for row in report["by_kind"]:
        table.add_row(
            row["kind"],
            f"{row['faults']}",
            f"{row['longest_s']:.1f}",
            f"{row['hand_overs']:,}",
            f"{row['duplicates']:,}",
            f"{row['longest_unowned_s']:.2f}",
        )
    console.print(table)
    for line in _figures(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in _findings(report["findings"]):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    verdict = f"{len(report['findings']):,} findings" if report["findings"] else "no finding"
    console.print(verdict, style="bold red" if report["findings"] else "bold green", highlight=False)


def _findings(findings: list[dict[str, Any]]) -> Iterator[str]:
    """
    Yield a line for each of the first ``MOST_PRINTED`` findings of every kind, and a line with the number of further
    findings.
    """
    counts = Counter(finding["kind"] for finding in findings)
    for kind, count in counts.items():
        for finding in [each for each in findings if each["kind"] == kind][:MOST_PRINTED]:
            where = "" if finding["partition"] is None else f" partition {finding['partition']}"
            yield f"{kind}:{where} at {finding['at_s']:.3f} s: {finding['text']}"
        if count > MOST_PRINTED:
            yield f"{kind}: {count - MOST_PRINTED:,} more"


def _figures(report: dict[str, Any]) -> Iterator[str]:
    minutes, seconds = divmod(round(report["wall_s"]), 60)
    yield (
        f"{report['records_acknowledged']:,} records acknowledged, {report['records_delivered']:,} delivered,"
        f" {report['duplicates']:,} deliveries were repeats"
    )
    yield (
        f"{report['hand_overs']:,} hand-overs among {report['processes']} processes, {report['commits']:,} commits;"
        f" {minutes} min {seconds} s of wall time"
    )
    yield (
        f"longest time without an owner: {report['longest_unowned_s']:.2f} s, and"
        f" {report['longest_unowned_quiet_s']:.2f} s in one piece without a fault,"
        f" where {report['limits']['unowned_s']:g} s are allowed"
    )
    for repair in report["repairs"]:
        yield f"not in the schedule: {repair}"
    if report["failure"]:
        yield f"the faults ended early because a server did not recover: {report['failure']}"
    if report["interrupted"]:
        yield "a signal ended the faults; the time until then is checked"
