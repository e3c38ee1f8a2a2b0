"""
Fuzz the decoders and the encoder, guided by the coverage of each input: python -m tests.fuzz --inputs 10000000.

Each target runs in a process of its own, with libFuzzer through atheris. An input that fails is saved in the folder of
--corpus, and belongs into ``tests/fuzz/test_targets.py`` once the fault is fixed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

#: Seconds for one input, and MiB for a whole process: the promise that time and memory are linear in the input.
_LONGEST_S, _MOST_MIB = 5, 600
_LONGEST_INPUT_BYTES = 4096


def main() -> int:
    arguments = _arguments()
    if arguments.one:
        _fuzz(arguments.one, arguments.libfuzzer)
    from tests.fuzz.targets import TARGETS

    names = arguments.target or list(TARGETS)
    if arguments.replay is not None:
        for name in names:
            _say(f"{name}: {_replay(name, arguments.corpus / name, arguments.replay):,} inputs")
        return 0
    whole = sum(TARGETS[name].share for name in names)
    counts = {name: int(arguments.inputs * TARGETS[name].share / whole) for name in names}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        passed = list(pool.map(lambda name: _run(name, counts[name], arguments.corpus / name), names))
    return 0 if all(passed) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs of all targets together")
    parser.add_argument("--target", action="append", help="one target; may be repeated; by default, all targets")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets that are fuzzed at the same time")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="folder that keeps the interesting inputs")
    parser.add_argument(
        "--replay",
        type=int,
        metavar="CHANGES",
        help="run the kept inputs, and so many random changes of each, in this process and without guidance",
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("libfuzzer", nargs="*", help="options of libFuzzer, after --")
    return parser.parse_args()


def _replay(name: str, corpus: Path, changes: int) -> int:
    """Run the seeds and the kept inputs of a target, and random changes of them. Return the number of inputs."""
    from tests.fuzz.targets import TARGETS

    target, random, count = TARGETS[name], Random(name), 0
    for kept in [*target.seeds, *(path.read_bytes() for path in sorted(corpus.glob("*")))]:
        for change in range(changes + 1):
            data = bytearray(kept)
            for _ in range(change and random.randint(1, 4)):
                at = random.randrange(len(data) + 1)
                data[at : at + random.randint(0, 3)] = random.randbytes(random.randint(0, 3))
            target.run(bytes(data))
            count += 1
    return count


def _run(name: str, inputs: int, corpus: Path) -> bool:
    """Fuzz one target in a child process. Print one line of results, or the output of a failure."""
    from tests.fuzz.targets import TARGETS

    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--", str(corpus), f"-runs={inputs}"]
    command += [f"-timeout={_LONGEST_S}", f"-rss_limit_mb={_MOST_MIB}", f"-max_len={_LONGEST_INPUT_BYTES}"]
    command += ["-print_final_stats=1", f"-artifact_prefix={corpus.parent}/{name}-"]
    started_s = time.monotonic()
    child = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    statistics = dict(re.findall(r"stat::(\w+):\s+(\d+)", child.stdout))
    covered = re.findall(r"cov: (\d+)", child.stdout)
    if child.returncode or not covered:
        _say(f"{name}: FAILED\n{child.stdout[-5_000:]}")
        return False
    _say(
        f"{name}: {int(statistics['number_of_executed_units']):,} inputs in {time.monotonic() - started_s:.0f} s, "
        f"{covered[-1]} places covered, at most {statistics['peak_rss_mb']} MiB of memory"
    )
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fuzz(name: str, options: list[str]) -> None:
    """Fuzz one target in this process, which then ends."""
    import atheris

    # Coverage is counted in modules that are imported within this block only.
    with atheris.instrument_imports(include=["kiel_groups", "tests"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
