"""
Mutants, each in a copy of its own, against what is to notice them.

All copies are made of one snapshot: what is edited meanwhile is not tried. A killer must pass on the snapshot as it
is; one that does not would kill everything, and nothing that it says counts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import SIM, Mutant

__all__ = ["Outcome", "Trials", "Verdict", "fits"]

#: What is copied of the project.
PARTS = ("kiel_groups", "tests", "examples", "pyproject.toml", "setup.py", "README.rst")
#: Where the simulator's seeds begin: the same each time, so that what dies today dies tomorrow.
SEED_BASE = 1_000_000
#: How long a killer may take, and how long one that was told to stop may tidy up, in seconds.
LIMIT_S = 1_800.0
PATIENCE_S = 10.0
#: How long one of its tests may take, in seconds.
TEST_S = 60
#: So much of what a killer says is repeated.
MOST_TOLD = 160


class Outcome(Enum):
    """What became of a mutant; ``NONE`` where that cannot be said."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    NONE = "NO VERDICT"


class Verdict(NamedTuple):
    """``told`` is the first that its killer said."""

    mutant: Mutant
    outcome: Outcome
    took_s: float
    told: str


class Ran(NamedTuple):
    """A killer's run: ``noticed`` None where it came to no end, or to another one than a test's."""

    noticed: bool | None
    took_s: float
    told: str


def fits(mutant: Mutant, root: Path) -> bool:
    """Whether the piece that it replaces stands in the source, once."""
    return _source(root, mutant).read_text(encoding="utf-8").count(mutant.old) == 1


class Trials:
    """
    Trials of one snapshot of the project at ``root``, made in ``folder``.

    Args:
        root: The project.
        folder: An empty folder for the snapshot and its copies.
        seeds: How many seeds of the simulator a mutant may survive.
        jobs: How many killers run at once.
        say: Told of each killer and each mutant, a line each.
    """

    def __init__(self, root: Path, folder: Path, seeds: int, jobs: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._seeds = seeds
        self._turn = asyncio.Semaphore(jobs)
        self._say = say
        self.snapshot = folder / "unbroken"
        for part in PARTS:
            _copy(root / part, self.snapshot / part)

    async def run(self, mutants: Iterable[Mutant]) -> list[Verdict]:
        """Try the killers of these on the snapshot, and each mutant as soon as its killer has passed."""
        listed = list(mutants)
        killers = list(dict.fromkeys(mutant.killer for mutant in listed))
        self._say(f"{len(killers)} killers on the unbroken core, {len(listed)} mutants")
        async with asyncio.TaskGroup() as group:
            sound = {
                killer: group.create_task(self._is_sound(killer, f"{number}/{len(killers)}"))
                for number, killer in enumerate(killers, 1)
            }
            tasks = [
                group.create_task(self._judge(mutant, sound[mutant.killer], f"{number}/{len(listed)}"))
                for number, mutant in enumerate(listed, 1)
            ]
        return [task.result() for task in tasks]

    async def _is_sound(self, killer: str, place: str) -> bool:
        async with self._turn:
            ran = await self._kill(self.snapshot, killer)
        word = "passes" if ran.noticed is False else "FAILS"
        self._say(f"{place:>7} {word:10} {ran.took_s:5.0f} s  unbroken: {killer}{_after(ran.told)}")
        return ran.noticed is False

    async def _judge(self, mutant: Mutant, sound: asyncio.Task[bool], place: str) -> Verdict:
        if not await sound:
            verdict = Verdict(mutant, Outcome.NONE, 0.0, "its killer does not pass on the unbroken core")
        else:
            async with self._turn:
                verdict = await self._try(mutant, self._folder / place.replace("/", "-"))
        word = verdict.outcome.value
        self._say(
            f"{place:>7} {word:10} {verdict.took_s:5.0f} s  {mutant.name} ({mutant.killer}){_after(verdict.told)}"
        )
        return verdict

    async def _try(self, mutant: Mutant, copy: Path) -> Verdict:
        _copy(self.snapshot, copy)
        try:
            source = _source(copy, mutant)
            source.write_text(source.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
            ran = await self._kill(copy, mutant.killer)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        outcome = {True: Outcome.KILLED, False: Outcome.SURVIVED, None: Outcome.NONE}[ran.noticed]
        return Verdict(mutant, outcome, ran.took_s, ran.told)

    async def _kill(self, root: Path, killer: str) -> Ran:
        if killer == SIM:
            seeds = ("--seeds", str(self._seeds), "--seed-base", str(SEED_BASE))
            return await _run(root, "seed ", "tests.sim", "--jobs", "1", "--first", *seeds)
        # The plugin of hypothesis costs two seconds at each start, and its tests run without it, too.
        without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
        # What hangs is noticed, too.
        return await _run(root, "FAILED ", "pytest", "-n0", "-x", "-q", f"--timeout={TEST_S}", *without, killer)


async def _run(root: Path, failure: str, module: str, *arguments: str) -> Ran:
    """Run a killer; ``failure`` is what a line begins with that says what was noticed."""
    began_s = time.monotonic()
    # A session of its own: a Ctrl-C at the terminal is for the runner, which then ends its killers.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        return Ran(None, time.monotonic() - began_s, f"it did not end within {LIMIT_S:g} s")
    finally:
        await _end(process)
    took_s = time.monotonic() - began_s
    said = next((line for line in output.decode().splitlines() if line.startswith(failure)), "")
    if process.returncode == 0:
        return Ran(False, took_s, "")
    if process.returncode == 1 and said:
        return Ran(True, took_s, said)
    # What cannot even be imported, or set up, is a mistake of the catalogue.
    told = (output.decode().strip() + errors.decode().strip()).splitlines()
    return Ran(None, took_s, f"exit code {process.returncode}: {told[-1] if told else 'it said nothing'}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """A killer that still runs stops its servers in order; should it hang, it is killed with all that it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await process.communicate()
        except TimeoutError:
            continue


def _after(told: str) -> str:
    return f": {told[:MOST_TOLD]}" if told else ""


def _source(root: Path, mutant: Mutant) -> Path:
    return root / "kiel_groups" / mutant.file


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.gz"))
    elif source.exists():
        shutil.copy(source, target)
