"""
Run the killer of each mutant, on a copy of the project that has only this fault.

All copies are made from one snapshot, so edits during a run have no effect. A killer must pass on the snapshot itself.
A killer that fails there would kill every mutant, so its results do not count.
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

#: The parts of the project that are copied.
PARTS = ("kiel_groups", "tests", "examples", "pyproject.toml", "setup.py", "README.rst", "LICENSE")
#: The first seed of the simulator: always the same, so that the outcome of a mutant does not change from run to run.
SEED_BASE = 1_000_000
#: How long a killer may take, and how long it may take to stop after a signal, in seconds.
LIMIT_S = 1_800.0
STOP_S = 10.0
#: How long one test of a killer may take, in seconds.
TEST_S = 60
#: How much of a killer's message is printed, in characters.
MOST_SHOWN = 160


class Outcome(Enum):
    """The outcome of a mutant. ``NONE`` means that its killer gave no result."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    NONE = "NO VERDICT"


class Verdict(NamedTuple):
    """The outcome of one mutant. ``message`` is the first failure that its killer reported."""

    mutant: Mutant
    outcome: Outcome
    took_s: float
    message: str


class Result(Enum):
    """The result of one run of a killer."""

    PASSED = "its tests passed"
    FAILED = "a test failed"
    #: The run did not end, or ended in another way than by its tests.
    BROKEN = "the run gave no result"


#: The outcome of a mutant, by the result of its killer's run against it.
_OUTCOMES = {Result.FAILED: Outcome.KILLED, Result.PASSED: Outcome.SURVIVED, Result.BROKEN: Outcome.NONE}


class Ran(NamedTuple):
    """One run of a killer. ``message`` is the first failure, or the reason why there is no result."""

    result: Result
    took_s: float
    message: str


def fits(mutant: Mutant, root: Path) -> bool:
    """Return whether the text that a mutant replaces occurs exactly once in its file."""
    return _source(root, mutant).read_text(encoding="utf-8").count(mutant.old) == 1


class Trials:
    """
    Trials of one snapshot of the project at ``root``, made in ``folder``.

    Args:
        root: The project.
        folder: An empty folder for the snapshot and its copies.
        seeds: How many seeds of simulated groups run against a mutant.
        jobs: How many killers run at once.
        say: Called with one line for each killer, and one for each mutant.
    """

    def __init__(self, root: Path, folder: Path, seeds: int, jobs: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._seeds = seeds
        self._slots = asyncio.Semaphore(jobs)
        self._say = say
        self.snapshot = folder / "original"
        for part in PARTS:
            _copy(root / part, self.snapshot / part)

    async def run(self, mutants: Iterable[Mutant]) -> list[Verdict]:
        """Run the killers on the snapshot, and each mutant once its killer has passed there."""
        listed = list(mutants)
        killers = list(dict.fromkeys(mutant.killer for mutant in listed))
        self._say(f"{len(killers)} killers on the original, {len(listed)} mutants")
        async with asyncio.TaskGroup() as group:
            passing = {
                killer: group.create_task(self._passes(killer, f"{number}/{len(killers)}"))
                for number, killer in enumerate(killers, 1)
            }
            tasks = [
                group.create_task(self._verdict(mutant, passing[mutant.killer], f"{number}/{len(listed)}"))
                for number, mutant in enumerate(listed, 1)
            ]
        return [task.result() for task in tasks]

    async def _passes(self, killer: str, place: str) -> bool:
        async with self._slots:
            ran = await self._run_killer(self.snapshot, killer)
        passes = ran.result is Result.PASSED
        word = "passes" if passes else "FAILS"
        self._say(f"{place:>7} {word:10} {ran.took_s:5.0f} s  original: {killer}{_after(ran.message)}")
        return passes

    async def _verdict(self, mutant: Mutant, passing: asyncio.Task[bool], place: str) -> Verdict:
        if not await passing:
            verdict = Verdict(mutant, Outcome.NONE, 0.0, "its killer does not pass on the original")
        else:
            async with self._slots:
                verdict = await self._try(mutant, self._folder / place.replace("/", "-"))
        word = verdict.outcome.value
        self._say(
            f"{place:>7} {word:10} {verdict.took_s:5.0f} s  {mutant.name} ({mutant.killer}){_after(verdict.message)}"
        )
        return verdict

    async def _try(self, mutant: Mutant, copy: Path) -> Verdict:
        _copy(self.snapshot, copy)
        try:
            source = _source(copy, mutant)
            source.write_text(source.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
            ran = await _compile(copy, source) if source.suffix in {".c", ".h"} else None
            ran = ran or await self._run_killer(copy, mutant.killer)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return Verdict(mutant, _OUTCOMES[ran.result], ran.took_s, ran.message)

    async def _run_killer(self, root: Path, killer: str) -> Ran:
        if killer == SIM:
            seeds = ("--seeds", str(self._seeds), "--seed-base", str(SEED_BASE))
            return await _run(root, "seed ", "tests.sim", "--jobs", "1", "--first", *seeds)
        # The plugin of hypothesis takes two seconds to load, and its tests run without it as well.
        without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
        # A test that hangs fails by its timeout, which kills the mutant.
        return await _run(root, "FAILED ", "pytest", "-n0", "-x", "-q", f"--timeout={TEST_S}", *without, killer)


async def _compile(root: Path, source: Path) -> Ran | None:
    """
    Build the module of a C source or header, which is in the same folder. If that fails, return a run without a result:
    tests would use no such module.
    """
    started_s = time.monotonic()
    for built in source.parent.glob("*.so"):
        built.unlink()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "setup.py", "-q", "build_ext", "--inplace"),
        cwd=root,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        await _end(process)
    if any(source.parent.glob("*.so")):
        return None
    lines = output.decode().strip().splitlines()
    return Ran(Result.BROKEN, time.monotonic() - started_s, f"not compiled: {lines[-1] if lines else 'no output'}")


async def _run(root: Path, failure: str, module: str, *arguments: str) -> Ran:
    """Run a killer, and read its result. ``failure`` is the beginning of the line that reports a failed test."""
    started_s = time.monotonic()
    # The killer has its own process group: Ctrl-C at the terminal reaches only this process, which then ends it.
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
        return Ran(Result.BROKEN, time.monotonic() - started_s, f"it did not end within {LIMIT_S:g} s")
    finally:
        await _end(process)
    took_s = time.monotonic() - started_s
    report = next((line for line in output.decode().splitlines() if line.startswith(failure)), "")
    if process.returncode == 0:
        return Ran(Result.PASSED, took_s, "")
    if process.returncode == 1 and report:
        return Ran(Result.FAILED, took_s, report)
    # Code that cannot be imported or set up shows nothing about the tests. The catalogue is wrong.
    lines = (output.decode().strip() + errors.decode().strip()).splitlines()
    return Ran(Result.BROKEN, took_s, f"exit code {process.returncode}: {lines[-1] if lines else 'no output'}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a killer that still runs, so that it stops its servers; if it hangs, kill its process group."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(STOP_S):
                await process.communicate()
        except TimeoutError:
            continue


def _after(message: str) -> str:
    return f": {message[:MOST_SHOWN]}" if message else ""


def _source(root: Path, mutant: Mutant) -> Path:
    return root / "kiel_groups" / mutant.file


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.gz"))
    elif source.exists():
        shutil.copy(source, target)
