"""Play many seeds, or one again: ``scripts/sim --help``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import SystemRandom

from tests.helpers.arguments import positive
from tests.sim.outcome import Outcome
from tests.sim.report import GROUPS, replay, shortened

#: The number of seeds that a process gets at once.
CHUNK = 20
#: The number of seeds between two progress lines of a run without a terminal.
SPAN = 1_000


def main() -> int:
    arguments = _parse()
    groups = GROUPS[arguments.groups]
    if arguments.replay is not None:
        scenario = groups.make(arguments.replay)
        return 1 if replay(scenario if arguments.whole else shortened(scenario, groups), groups, _say).error else 0
    base = arguments.seed_base if arguments.seed_base is not None else SystemRandom().randrange(1 << 40)
    return _play_many(arguments.groups, base, arguments.seeds, arguments.jobs, first=arguments.first)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/sim", description="Simulated groups, each with faults of its own; every seed is a scenario."
    )
    parser.add_argument("--seeds", type=positive, default=1_000, help="how many to play (1000)")
    parser.add_argument(
        "--groups",
        choices=list(GROUPS),
        default="zookeeper",
        help="consumers that ZooKeeper or brokers coordinate, programs, or workers (zookeeper)",
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes at once (all cores)")
    parser.add_argument("--seed-base", type=int, help="the first seed; another one each time unless given")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="play one seed, shortened if it fails, and report it"
    )
    parser.add_argument("--whole", action="store_true", help="with --replay: do not shorten it")
    return parser.parse_args()


def _play_many(kind: str, base: int, count: int, jobs: int, *, first: bool) -> int:
    began_s = time.monotonic()
    failed: list[Outcome] = []
    played = steps = events = faults = 0
    cpu_s = 0.0
    for outcomes in _chunks(kind, base, count, jobs):
        played += len(outcomes)
        steps += sum(outcome.steps for outcome in outcomes)
        events += sum(len(outcome.scenario.events) for outcome in outcomes)
        faults += sum(outcome.scenario.faults for outcome in outcomes)
        cpu_s += sum(outcome.cpu_s for outcome in outcomes)
        for outcome in outcomes:
            if outcome.error:
                failed.append(outcome)
                seed = outcome.scenario.seed
                _say(f"seed {seed}: {outcome.error}\nagain: scripts/sim --groups {kind} --replay {seed}", flush=True)
                if first:
                    return 1
        if sys.stderr.isatty():
            _say(f"\r{played} of {count} seeds, {len(failed)} failed", end="", file=sys.stderr)
        elif played % SPAN < len(outcomes):
            _say(f"{played} of {count} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    took_s = time.monotonic() - began_s
    _say(
        f"\n{played} seeds from {base} in {took_s:.0f} s on {jobs} processes ({1000 * cpu_s / played:.0f} ms of"
        f" CPU a seed): {events} events, {faults} faults, {steps} steps; {len(failed)} failed"
    )
    for outcome in failed[:1]:
        replay(shortened(outcome.scenario, GROUPS[kind]), GROUPS[kind], _say)
    return 1 if failed else 0


def _chunks(kind: str, base: int, count: int, jobs: int) -> Iterator[list[Outcome]]:
    pieces = [list(range(first, min(first + CHUNK, base + count))) for first in range(base, base + count, CHUNK)]
    play_chunk = partial(_play_chunk, kind)
    if jobs == 1:
        yield from map(play_chunk, pieces)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play_chunk, pieces)


def _play_chunk(kind: str, seeds: list[int]) -> list[Outcome]:
    groups = GROUPS[kind]
    logging.disable(logging.CRITICAL)
    try:
        return [groups.play(groups.make(seed)) for seed in seeds]
    finally:
        logging.disable(logging.NOTSET)


_say = print


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings then have the same order when a seed is replayed, in case the order affects a scenario.
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
