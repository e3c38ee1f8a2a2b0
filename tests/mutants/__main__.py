"""Break the core in every way of the catalogue, one at a time, each in a copy, and say what nobody noticed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.mutants.catalogue import MUTANTS, SIM, Mutant

ROOT = Path(__file__).parents[2]
#: Where the simulator's seeds begin: the same each time, so that what dies today dies tomorrow.
SEED_BASE = 1_000_000
LIMIT_S = 1_800


class Verdict(NamedTuple):
    """What became of a mutant; ``told`` is the last that its killer said."""

    mutant: Mutant
    killed: bool
    took_s: float
    told: str


def main() -> int:
    arguments = _parse()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.name]
    broken = [mutant.name for mutant in chosen if not fits(mutant)]
    if broken:
        _say(f"{len(broken)} mutants do not fit the source any more; correct the catalogue: {', '.join(broken)}")
        return 2
    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = []
        for verdict in pool.map(lambda mutant: _try(mutant, arguments.seeds), chosen):
            verdicts.append(verdict)
            word = "killed" if verdict.killed else "SURVIVED"
            _say(f"{word:8} {verdict.took_s:5.0f} s  {verdict.mutant.name} ({verdict.mutant.killer}): {verdict.told}")
    survivors = [verdict.mutant.name for verdict in verdicts if not verdict.killed]
    _say(f"{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed; survivors: {survivors or 'none'}")
    return 1 if survivors else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds a mutant may survive (2000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once (all cores)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose names hold this text")
    return parser.parse_args()


def fits(mutant: Mutant) -> bool:
    """Whether the piece that it replaces stands in the source, once."""
    return _source(ROOT, mutant).read_text(encoding="utf-8").count(mutant.old) == 1


def _source(root: Path, mutant: Mutant) -> Path:
    return root / "kiel_groups" / mutant.file


def _try(mutant: Mutant, seeds: int) -> Verdict:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kiel-groups-mutant-") as folder:
        copy = Path(folder)
        for name in ("kiel_groups", "tests", "examples", "pyproject.toml", "setup.py", "README.rst"):
            _copy(ROOT / name, copy / name)
        source = _source(copy, mutant)
        source.write_text(source.read_text().replace(mutant.old, mutant.new))
        if mutant.killer == SIM:
            ran = _play(copy, SEED_BASE, seeds)
        else:
            ran = _run(copy, "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", mutant.killer)
    said = [line for line in ran.stdout.splitlines() if line.startswith(("seed ", "FAILED", "ERROR"))]
    # One that cannot even be imported is a mistake of the catalogue, and no verdict.
    killed = ran.returncode == 1 and bool(said) and not (mutant.killer == SIM and _fails_anyway(said[0]))
    return Verdict(mutant, killed, time.monotonic() - began_s, said[0] if said else ran.stderr[-200:])


def _fails_anyway(told: str) -> bool:
    """Whether the seed that is told of fails in the source as it is: then it says nothing of a mutant."""
    return _play(ROOT, int(told.split()[1].rstrip(":")), 1).returncode != 0


def _play(root: Path, seed: int, count: int) -> subprocess.CompletedProcess[str]:
    return _run(root, "tests.sim", "--jobs", "1", "--first", "--seeds", str(count), "--seed-base", str(seed))


def _run(root: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.gz"))
    elif source.exists():
        shutil.copy(source, target)


_say = partial(print, flush=True)


if __name__ == "__main__":
    sys.exit(main())
