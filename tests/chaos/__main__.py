"""Inflict random faults on real servers, and check the group from outside: see ``scripts/chaos --help``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

from rich.console import Console

from kiel_groups.cli.terminal.rendering import bar, has_bar
from kiel_groups.errors import KielGroupsError
from tests.chaos.checker import Limits, check
from tests.chaos.member_hosts import REPOSITORY
from tests.chaos.report import make_report, print_report
from tests.chaos.run import Progress, Run
from tests.chaos.schedule import Schedule, ScheduleError, make_schedule
from tests.helpers.arguments import positive, positive_number

#: Exit statuses: no finding; findings; the run says nothing about the group; the run was interrupted.
SOUND, BROKEN, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
#: The default number of faults.
FAULTS = 20
#: Seconds between two lines of progress if there is no terminal.
LINE_INTERVAL_S = 15.0
#: How many seconds longer than ``unowned_s`` a run continues after its last fault.
QUIET_MARGIN_S = 2.0


def main() -> int:
    options = _parse()
    try:
        return _main(options)
    except Exception:
        # Status 1 means findings about the group, which this error is not.
        traceback.print_exc()
        return UNUSABLE


def _main(options: argparse.Namespace) -> int:
    try:
        schedule = _schedule(options)
        if options.json is not None:
            _check_writable(options.json)
        folder, kept = _folder(options.keep, schedule.seed)
    except (OSError, ValueError) as error:
        return _fail(f"{error}")
    stored = folder / "schedule.json"
    stored.write_text(schedule.to_json(), encoding="utf-8")
    _say(f"{len(schedule.faults)} faults of seed {schedule.seed}; the schedule is in {stored}")
    logging.getLogger("kiel_groups").addHandler(logging.FileHandler(folder / "run.log"))
    logging.getLogger("kiel_groups").propagate = False
    timeout_s = schedule.session_timeout_s
    limits = Limits(unowned_s=timeout_s + options.tolerance, late_s=timeout_s + options.tolerance + 10)
    try:
        with _progress(len(schedule.faults)) as progress:
            # The end of the run must be long enough to find a partition that stays without an owner.
            run = Run(
                schedule,
                folder,
                rate=options.rate,
                quiet_end_s=limits.unowned_s + QUIET_MARGIN_S,
                progress=progress,
                checkouts=[REPOSITORY, *([options.other] if options.other else [])],
            )
            result = asyncio.run(run.play())
    except KielGroupsError as error:
        return _fail(f"{error}\nlogs: {folder}\nagain: scripts/chaos --replay {stored}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say(f"ended at once; nothing was checked; logs: {folder}")
        return INTERRUPTED
    findings = check(result.history, limits)
    report = make_report(schedule, result, findings, limits)
    print_report(Console(), report)
    for path in [folder / "report.json", *([options.json] if options.json else [])]:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if findings or result.failure:
        _say(f"logs: {folder}\nagain: scripts/chaos --replay {stored}")
    elif not kept:
        shutil.rmtree(folder, ignore_errors=True)
    if findings:
        return BROKEN
    return UNUSABLE if result.failure else SOUND


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="A group on real servers under random faults: nothing may be lost, no partition may have two owners"
        " or none for long. Exit status 0: no finding; 1: findings; 2: the run says nothing about the group.",
    )
    parser.add_argument("--faults", type=positive, help=f"how many ({FAULTS}; some 5 s each)")
    parser.add_argument("--seed", type=int, help="the seed of the schedule; random by default")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="inflict this schedule instead")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave schedule, logs and histories in this new folder"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    parser.add_argument("--rate", type=positive_number, default=150.0, help="records a second (150)")
    parser.add_argument(
        "--tolerance",
        type=positive_number,
        default=4.0,
        help="how long beyond the session timeout a partition may have no owner, in seconds (4); for slow machines",
    )
    parser.add_argument(
        "--other",
        type=Path,
        metavar="DIR",
        help="another checkout of this project, whose code every second member runs; see scripts/mixed",
    )
    options = parser.parse_args()
    if options.other is not None:
        options.other = options.other.absolute()
        if not (options.other / "tests" / "chaos" / "member.py").is_file():
            parser.error(f"--other: {options.other} is no checkout of this project; it has no tests/chaos/member.py")
    if options.replay is not None and (options.seed is not None or options.faults is not None):
        parser.error("--replay has faults and a seed of its own; expected neither --faults nor --seed beside it")
    return options


def _schedule(options: argparse.Namespace) -> Schedule:
    if options.replay is not None:
        try:
            return Schedule.parse(options.replay.read_text(encoding="utf-8"))
        except ValueError as error:  # not UTF-8, or not a schedule
            raise ScheduleError(f"{options.replay}: {error}") from error
    seed = options.seed if options.seed is not None else SystemRandom().randrange(1 << 32)
    return make_schedule(seed, options.faults or FAULTS)


def _check_writable(path: Path) -> None:
    """Raise an OSError if the file cannot be written. Without this check, the error would come after the last fault."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8"):
        pass
    if is_new:
        path.unlink()


def _folder(keep: Path | None, seed: int) -> tuple[Path, bool]:
    """Return the folder of the run, and whether it is kept after a run without a finding."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix=f"kiel-groups-chaos-{seed}-")), False
    keep.mkdir(parents=True)
    return keep.absolute(), True


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Progress], object]]:
    """Provide a function that reports progress: by a bar on a terminal, or else by a line at intervals."""
    started_s = time.monotonic()

    def describe(progress: Progress) -> str:
        done = progress.started / total
        spent_s = time.monotonic() - started_s
        left = f", {spent_s / done - spent_s:.0f} s left" if done > 0.02 else ""
        return (
            f"{progress.started} of {total} faults, {progress.acknowledged:,} records,"
            f" {progress.delivered:,} deliveries{left}: {progress.activity}"
        )

    if has_bar():
        with bar(total, "starting servers") as update:
            yield lambda progress: update(describe(progress), progress.started)
        return
    next_s = 0.0

    def write_line(progress: Progress) -> None:
        nonlocal next_s
        if (now_s := time.monotonic()) >= next_s:
            next_s = now_s + LINE_INTERVAL_S
            _say(f"{now_s - started_s:6.0f} s  {describe(progress)}")

    yield write_line


def _fail(text: str) -> int:
    _say(f"error: {text}")
    return UNUSABLE


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
