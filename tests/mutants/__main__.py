"""Apply each mutant of the catalogue to a copy of the project, run its killer, and report the mutants that survive."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from tests.helpers.arguments import positive
from tests.mutants.catalogue import PROMISES
from tests.mutants.mutant import Mutant
from tests.mutants.trials import Outcome, Trials, Verdict, fits

ROOT = Path(__file__).parents[2]


def main() -> int:
    arguments = _parse()
    chosen = {
        promise: [each for each in mutants if any(arguments.only in t for t in (promise, each.name, each.killer))]
        for promise, mutants in PROMISES.items()
    }
    if not any(chosen.values()):
        _say(f"--only: no promise, mutant or killer contains {arguments.only!r}; --list prints them all")
        return 2
    if arguments.list:
        for promise, mutants in chosen.items():
            if mutants:
                _say(promise)
            for mutant in mutants:
                _say(f"    {mutant.name} ({mutant.file}; {mutant.killer})")
        return 0
    try:
        return asyncio.run(_try_all([*chain(*chosen.values())], arguments.seeds, arguments.jobs))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("stopped; all copies are deleted")
        return 130


async def _try_all(chosen: Sequence[Mutant], seeds: int, jobs: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kiel-groups-mutants-") as folder:
        trials = Trials(ROOT, Path(folder), seeds, jobs, _say)
        if misfits := [mutant.name for mutant in chosen if not fits(mutant, trials.snapshot)]:
            _say(f"{len(misfits)} mutants do not fit the source; correct the catalogue: {'; '.join(misfits)}")
            return 2
        verdicts = await trials.run(chosen)
    return _report(verdicts, time.monotonic() - started_s)


def _report(verdicts: Sequence[Verdict], took_s: float) -> int:
    names = {outcome: [v.mutant.name for v in verdicts if v.outcome is outcome] for outcome in Outcome}
    _say(
        f"{len(names[Outcome.KILLED])} of {len(verdicts)} mutants killed in {took_s:.0f} s;"
        f" survivors: {'; '.join(names[Outcome.SURVIVED]) or 'none'}"
    )
    if names[Outcome.NONE]:
        _say(f"no verdict: {'; '.join(names[Outcome.NONE])}")
    return 0 if len(names[Outcome.KILLED]) == len(verdicts) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument(
        "--seeds", type=positive, default=500, help="seeds of simulated groups that run against a mutant (500)"
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=os.cpu_count() or 1,
        help="killers that run at the same time (one for each core)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only mutants whose promise, name or killer contains this text"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants with file and killer, and run nothing")
    return parser.parse_args()


_say = partial(print, flush=True)


if __name__ == "__main__":
    sys.exit(main())
