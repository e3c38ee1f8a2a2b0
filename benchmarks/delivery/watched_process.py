"""Run a client in a process of its own, and measure it from one of its reports to another."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.cpu import cpu_time_s
from benchmarks.delivery.cores import CLIENT_CORE, on_core

__all__ = ["LEFT_OUT", "ClientFailure", "Command", "LeftOut", "Measurement", "json_report", "measure"]

#: The exit status of a program that cannot measure what it was asked to, and has said why.
LEFT_OUT = 3
#: A process that has not reported its end by then is killed.
LIMIT_S = 120.0
_CLOSE_S = 30.0

#: Takes a line of output, and returns what it reports: at least ``records`` and ``bytes``, both since the start.
Report = Callable[[str], Mapping[str, Any] | None]


class ClientFailure(click.ClickException):
    """A client failed, stalled, or returned other values than were written."""


class LeftOut(click.ClickException):
    """A client does not have the way of reading that was asked for."""


def json_report(line: str) -> Mapping[str, Any]:
    """Return what a program of ``benchmarks.members`` reports in a line."""
    report: Mapping[str, Any] = json.loads(line)
    return report


@dataclass(frozen=True, slots=True)
class Command:
    """
    How to run a client. It is measured from its first report to the report with the number ``reports``.

    Then its standard input ends, and it closes. A client that does not notice that is not ``orderly``, and is killed.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    report: Report = json_report
    reports: int = 2
    orderly: bool = True


@dataclass(frozen=True, slots=True)
class Measurement:
    """
    What happened between two reports.

    Times are in seconds; ``client_s`` and ``servers_s`` are of processors. ``peak_mib`` is the largest resident memory
    of the client until then. ``last`` is the last report.
    """

    records: int
    value_bytes: int
    elapsed_s: float
    client_s: float
    servers_s: float
    peak_mib: float
    last: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The clocks when a report arrived."""

    now_s: float
    client_s: float
    servers_s: float
    report: Mapping[str, Any]


def measure(command: Command, servers: Sequence[int], core: int = CLIENT_CORE) -> Measurement:
    """
    Run a client on one core, and return what it and the servers, given by their process ids, did.

    Raises:
        ClientFailure: The client failed, or took too long.
        LeftOut: The client says that it cannot read in this way.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command.arguments,
            env=command.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=on_core(core),
        ) as process,
    ):
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        try:
            found = _samples(process, command, servers)
            peak_mib = _peak_mib(process.pid) if len(found) == command.reports else 0.0
            _end(process, orderly=command.orderly)
        finally:
            timer.cancel()
            process.kill()
        errors.seek(0)
        said = errors.read()[-2_000:].strip()
    if process.returncode == LEFT_OUT:
        raise LeftOut(said)
    if len(found) < command.reports or (command.orderly and process.returncode):
        raise ClientFailure(f"ended with {process.returncode} after {len(found)} of {command.reports} reports: {said}")
    return _between(found[0], found[-1], peak_mib)


def _samples(process: subprocess.Popen[str], command: Command, servers: Sequence[int]) -> list[_Sample]:
    """Sample the clocks at each report, until all reports have arrived or the process has ended."""
    assert process.stdout
    found: list[_Sample] = []
    while len(found) < command.reports and (line := process.stdout.readline()):
        report = command.report(line)
        if report is not None:
            servers_s = sum(map(cpu_time_s, servers))
            with suppress(OSError):  # A process that fails may have ended already.
                found.append(_Sample(time.perf_counter(), cpu_time_s(process.pid), servers_s, report))
    return found


def _end(process: subprocess.Popen[str], *, orderly: bool) -> None:
    assert process.stdin
    process.stdin.close()
    if not orderly:
        process.kill()
    try:
        process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _peak_mib(pid: int) -> float:
    """
    Return the peak of a process's resident memory.

    ``ru_maxrss`` would include the memory of the process that started it.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak) / 1024


def _between(first: _Sample, last: _Sample, peak_mib: float) -> Measurement:
    return Measurement(
        records=last.report["records"] - first.report["records"],
        value_bytes=last.report["bytes"] - first.report["bytes"],
        elapsed_s=last.now_s - first.now_s,
        client_s=last.client_s - first.client_s,
        servers_s=last.servers_s - first.servers_s,
        peak_mib=peak_mib,
        last=last.report,
    )
