"""
Measure how fast message sets are decoded, for each codec.

    python benchmarks/decode.py [--quick] [--json FILE]

A set has 2,000 messages of about 100 bytes or 200 of 1 KiB (JSON lines), plain or as one wrapper, and every CRC is
checked. ``records`` are what a consumer delivers, ``columns`` what Spark gets; ``uncompiled`` are records from a
package that was installed without a compiler. kafka-python is called as its own consumer calls it, with
``validate_crc`` on each batch and then on each record. A plain message counts as both, so it is checked twice.

In every round each codec is measured with each decoder, so that other work on the machine affects all decoders. Rates
and ratios are medians over the rounds. ``to plain`` is the rate of our records divided by their rate for plain sets.
``to kafka-python`` is the rate of our records divided by the rate of kafka-python for the same bytes. Above 1 means
faster.

kafka-python has an environment of its own in the cache folder, created at the first run. If it cannot be installed, the
benchmark says so and continues without it.
"""

from __future__ import annotations

import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import click

from benchmarks.peers import peer_environment
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.decoder import decode_columns, message_steps
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.message_sets.python_decoder import decode_uncompiled

CODECS = ("plain", "gzip", "snappy", "lz4")
#: The number of messages in a set, by the bytes of a value.
MESSAGES_PER_SET = {100: 2_000, 1024: 200}

MOST_BYTES = 64 << 20

#: Takes a codec, and returns the seconds for one pass over its set.
Pass = Callable[[str], float]

#: A program that answers each line, "codec repetitions", with seconds. Arguments: the folder of the sets, and the
#: number of messages in each.
PEER = """
import pathlib, sys, time
from kafka.record import MemoryRecords

for line in sys.stdin:
    codec, repetitions = line.split()
    data = pathlib.Path(sys.argv[1], codec).read_bytes()
    start = time.perf_counter()
    for _ in range(int(repetitions)):
        records, found = MemoryRecords(data), []
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            for record in batch:
                assert record.validate_crc()
                found.append((record.offset, record.key, record.value))
        assert len(found) == int(sys.argv[2])
    print(time.perf_counter() - start, flush=True)
"""


def message_sets(value_bytes: int) -> dict[str, bytes]:
    """Return the same messages as one set for each codec."""
    count = MESSAGES_PER_SET[value_bytes]
    values = [
        json.dumps({"visitor": n * 7919 % 100_003, "page": f"/articles/{n % 53}.html", "took_ms": n * 31 % 977})
        for n in range(count)
    ]
    keys = [b"%d" % (n % 64) for n in range(count)]
    padded = [value.ljust(value_bytes - 2).encode() for value in values]
    return {codec: encode_message_set(keys, padded, None if codec == "plain" else codec) for codec in CODECS}


def ours(sets: Mapping[str, bytes], count: int, repetitions: int) -> dict[str, Pass]:
    """Return the decoders of kiel-groups by name."""
    source = TopicPartition("page-views", 0)

    def timed(read: Callable[[bytes], Sized], codec: str) -> float:
        data = sets[codec]
        start = time.perf_counter()
        for _ in range(repetitions):
            assert len(read(data)) == count
        return (time.perf_counter() - start) / repetitions

    def records(data: bytes) -> Sized:
        runs = message_steps(data, source, 0, max_decompressed_bytes=MOST_BYTES)
        return [record for run in runs if run is not None for record in run.records()]

    def columns(data: bytes) -> Sized:
        return decode_columns(data, source, 0, max_decompressed_bytes=MOST_BYTES)

    def uncompiled(data: bytes) -> Sized:
        return decode_uncompiled(data, source, 0, MOST_BYTES)

    return {read.__name__: partial(timed, read) for read in (records, columns, uncompiled)}


@contextmanager
def kafka_python(sets: Mapping[str, bytes], count: int, repetitions: int) -> Iterator[Pass]:
    """
    Run kafka-python in a separate process. Raise OSError or CalledProcessError if kafka-python cannot be installed.
    """
    python = peer_environment("kafka-python")
    with tempfile.TemporaryDirectory() as folder:
        for codec, data in sets.items():
            Path(folder, codec).write_bytes(data)
        command = [str(python), "-c", PEER, folder, str(count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin
            assert peer.stdout
            asked, answered = peer.stdin, peer.stdout

            def decode(codec: str) -> float:
                asked.write(f"{codec} {repetitions}\n")
                asked.flush()
                answer = answered.readline()
                if not answer:
                    raise click.ClickException(f"kafka-python failed on {codec}; its traceback is above")
                return float(answer) / repetitions

            yield decode
            asked.close()


def measure(decoders: Mapping[str, Pass], count: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return messages per second by codec and decoder, a figure for each round. An additional first round warms up."""
    rates: dict[str, dict[str, list[float]]] = {codec: {name: [] for name in decoders} for codec in CODECS}
    for number in range(rounds + 1):
        for codec in CODECS:
            for name, decode in decoders.items():
                seconds = decode(codec)
                if number:
                    rates[codec][name].append(count / seconds)
    return rates


def summary(
    value_bytes: int, rates: Mapping[str, Mapping[str, list[float]]], bytes_per_set: Mapping[str, int]
) -> list[dict[str, object]]:
    rows = []
    for codec, found in rates.items():
        row: dict[str, object] = {"codec": codec, "value": value_bytes, "set": bytes_per_set[codec]}
        row |= {f"{name}/s": round(median(values)) for name, values in found.items()}
        row["to plain"] = ratio(found["records"], rates["plain"]["records"])
        if "kafka-python" in found:
            row["to kafka-python"] = ratio(found["records"], found["kafka-python"])
        rows.append(row)
    return rows


def ratio(ones: list[float], others: list[float]) -> float:
    """Return the median of the ratios within each round."""
    return round(median(one / other for one, other in zip(ones, others, strict=True)), 2)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="3 short rounds instead of 9 long ones.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(quick: bool, target: Path | None) -> None:
    rounds, repetitions = (3, 10) if quick else (9, 100)
    rows: list[dict[str, object]] = []
    for value_bytes, count in MESSAGES_PER_SET.items():
        sets = message_sets(value_bytes)
        with ExitStack() as stack:
            decoders = ours(sets, count, repetitions)
            try:
                decoders["kafka-python"] = stack.enter_context(kafka_python(sets, count, max(1, repetitions // 10)))
            except (OSError, subprocess.CalledProcessError) as error:
                click.echo(f"without kafka-python, which could not be installed: {error}", err=True)
            rates = measure(decoders, count, rounds)
        rows += summary(value_bytes, rates, {codec: len(data) for codec, data in sets.items()})
    if not decoder.COMPILED:
        click.echo(
            "without the compiled decoder, which was not built: all records and columns are uncompiled", err=True
        )
    click.echo(" | ".join(f"{title:>14}" for title in rows[0]))
    for row in rows:
        click.echo(" | ".join(f"{value:>14}" for value in row.values()))
    if target:
        about = {"benchmark": "decode", "rounds": rounds}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        target.write_text(json.dumps({**about, **machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
