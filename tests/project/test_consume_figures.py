"""The benchmarks of delivery: what they write, how cells are selected, and how figures are computed."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import latency
from benchmarks.consume import HEADER, checked, figures, line, main
from benchmarks.delivery.cells import CELLS, CHOSEN, FULL, QUICK
from benchmarks.delivery.clients import HERE, java_report, program
from benchmarks.delivery.filled_topics import message_sets
from benchmarks.delivery.log_lines import log_lines
from benchmarks.delivery.watched_process import ClientFailure, Measurement
from benchmarks.members.latencies import STAMP_DIGITS, Latencies
from benchmarks.members.progress import Progress
from kiel_groups.model import TopicPartition
from tests.helpers.message_sets import decode_message_set

pytestmark = pytest.mark.unit


def measured(records: int, elapsed_s: float) -> Measurement:
    """Return a measurement of records of 100 bytes, with 2 s of the client and 1 s of servers."""
    return Measurement(records, 100 * records, elapsed_s, 2.0, 1.0, 50.0)


def reports(printed: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in printed.splitlines()]


def test_a_program_runs_with_the_checkout_that_it_is_given(tmp_path: Path) -> None:
    """Not with that in the present folder. ``--against`` depends on it."""
    package = tmp_path / "kiel_groups"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the other checkout')\n")
    command = program(tmp_path, "kiel_reader")
    found = subprocess.run(
        command.arguments, env=command.environment, cwd=HERE, capture_output=True, text=True, check=False
    )
    assert found.stderr.strip() == "the other checkout"


@pytest.mark.parametrize("size", [100, 1024])
def test_values_have_an_exact_size_and_compress_as_logs_do(size: int) -> None:
    """Values are JSON of the size that was asked for, different from each other, and the same ones at each run."""
    values = log_lines(500, size, seed=1)
    assert {len(value) for value in values} == {size}
    assert all(json.loads(value)["text"] for value in values)
    assert len(set(values)) == 500
    assert values == log_lines(500, size, seed=1) != log_lines(500, size, seed=2)
    whole = b"".join(values)
    assert 2 < len(whole) / len(gzip.compress(whole)) < 8


def test_sixteen_cells_are_chosen_and_six_have_all_clients() -> None:
    """The names of cells are valid, and the chosen ones have each codec, size, number of partitions and set size."""
    assert len(CELLS) == 72
    assert len(set(CHOSEN)) == 16
    assert len(set(FULL)) == 6
    assert set(QUICK) <= set(FULL) < set(CHOSEN) < set(CELLS)
    for position, choices in enumerate(zip(*(name.split("-") for name in CELLS), strict=True)):
        assert {name.split("-")[position] for name in CHOSEN} == set(choices)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4"])
@pytest.mark.parametrize(("sets", "messages"), [("large", 857), ("500", 500), ("16k", 15)])
def test_a_set_has_as_many_messages_as_its_cell_says(codec: str, sets: str, messages: int) -> None:
    """A set has the number of messages of its cell, whatever its codec, and a broker accepts it by default."""
    cell = CELLS[f"1K-{codec}-16p-{sets}"]
    encoded = message_sets(cell)[0]
    found = decode_message_set(encoded, TopicPartition("t", 0), 0, max_decompressed_bytes=1 << 24)
    assert len(found) == messages == cell.messages_per_set
    assert len(encoded) < 1_000_000


def test_a_topic_has_whole_sets_in_each_partition() -> None:
    """The number of records is near the one wanted, also where the partitions get one set each."""
    assert CELLS["100B-none-200p-large"].records() == 2_000_000
    assert CELLS["1K-none-16p-16k"].records() == 2_083 * 15 * 16
    assert CELLS["100B-none-200p-large"].records(quick=True) == 200 * 5_000


def test_figures_are_medians_and_ratios_are_of_the_same_round() -> None:
    """A slow round of both clients leaves the ratio as it is, and so does a round in which one of them failed."""
    found = [None, measured(1_000, 1.0), measured(1_000, 4.0), measured(1_000, 2.0), measured(1_000, 2.0)]
    base = [measured(10, 1.0), measured(2_000, 1.0), measured(500, 1.0), measured(1_000, 1.0), None]
    row = figures(found, base)
    assert row == {"records_per_s": 500, "client_us": 2_000, "broker_us": 1_000, "peak_mib": 50, "ratio": 0.5}
    assert figures(found, [])["ratio"] is None


@pytest.mark.parametrize("ratio", [None, 12.345])
def test_a_line_fits_100_columns(ratio: float | None) -> None:
    """The longest line has the columns of its header."""
    row = {"cell": "100B-snappy-200p-large", "client": "confluent-kafka consume() crc", "ratio": ratio}
    row |= {"records_per_s": 12_345_678.0, "client_us": 12_345.67, "broker_us": 12_345.67, "peak_mib": 12_345.6}
    assert len(line(row)) == len(HEADER) <= 100


def test_values_of_another_size_fail() -> None:
    """A client that returns other bytes than were written has no figures; Java rounds them."""
    cell = CELLS["100B-none-1p-500"]
    assert checked(Measurement(1_000, 100_050, 1, 1, 1, 1), cell)
    with pytest.raises(ClientFailure, match="1,000 values had 90,000 bytes; 100,000 were written"):
        checked(Measurement(1_000, 90_000, 1, 1, 1, 1), cell)
    with pytest.raises(ClientFailure, match="0 values"):
        checked(Measurement(0, 0, 1, 1, 1, 1), cell)


def test_reports_of_java_are_read() -> None:
    """A line of ConsumerPerformance has bytes and messages since the start; other lines are no reports."""
    said = "2026-11-23 21:08:35:323, 0, 1048576, 1.5000, 1.8386, 800, 50000.0000"
    assert java_report(said) == {"records": 800, "bytes": 3 << 19}
    assert java_report("a warning") is None


def test_progress_reports_the_first_and_the_last_delivery(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader reports its first delivery and its end. ``add`` returns the number of records until the next call."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    progress = Progress(1_200, limit_s=60)
    assert progress.add(0, 0) > 0
    assert [progress.add(count, 100 * count) for count in (1, 500, 500)] == [500, 500, 199]
    assert not progress.done
    assert progress.add(199, 19_900) == 0
    assert progress.done
    assert reports(capsys.readouterr().out) == [{"records": 1, "bytes": 100}, {"records": 1_200, "bytes": 120_000}]


def test_a_slow_reader_stops_at_its_limit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not reach the number of records in time reports those that it has read."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    progress = Progress(1_000_000, limit_s=0)
    assert progress.add(1, 100) == 500
    assert progress.add(500, 50_000) == 0
    assert [each["records"] for each in reports(capsys.readouterr().out)] == [1, 501]


def test_latencies_are_counted_after_the_warm_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values of the first two seconds count for nothing; then the median and the slowest are reported."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    now_ns = 10**10
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    latencies = Latencies(1.0)
    wanted = []
    for after_ms, latency_ms in ((0, 900), (1_999, 900), (2_000, 1), (2_500, 2), (3_000, 5)):
        now_ns = 10**10 + after_ms * 10**6
        wanted.append(latencies.add(b"%0*d" % (STAMP_DIGITS, now_ns - latency_ms * 10**6)))
    assert wanted == [True, True, True, True, False]
    assert reports(capsys.readouterr().out)[-1] == {"records": 3, "bytes": 60, "p50_ms": 2.0, "p99_ms": 5.0}


def test_the_figures_of_a_latency_have_the_load_of_the_busier_side() -> None:
    """Latencies are medians of the rounds, and ``busy`` is that of the core that has the least left."""
    found = [
        Measurement(1_000, 0, 10.0, client_s, 4.0, 50.0, {"p50_ms": 2.0, "p99_ms": slow_ms})
        for client_s, slow_ms in ((8.0, 9.0), (8.0, 7.0), (1.0, 20.0))
    ]
    row = latency.figures(100, "ours async for", found)
    assert row["busy"] == 0.8
    assert (row["p50_ms"], row["p99_ms"], row["delivered_per_s"], row["client_us"]) == (2.0, 9.0, 100, 8_000.0)
    assert latency.busy(found[-1]) == pytest.approx(0.4 / latency.OTHER_CORES)
    assert len(latency.line(row)) == len(latency.HEADER) <= 100


def test_all_cells_are_listed() -> None:
    """``--list`` needs no servers."""
    outcome = CliRunner().invoke(main, ["--list"])
    assert outcome.exit_code == 0
    assert [each.split()[0] for each in outcome.output.splitlines()] == list(CELLS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cells", "2K-none-1p-500"], "no cell has the name '2K-none-1p-500'; --list shows all"),
        (["--only", "sarama"], "no client has a name with sarama"),
    ],
)
def test_unknown_names_are_refused(arguments: list[str], said: str) -> None:
    """A name that does not exist is an error before servers are started."""
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 2
    assert said in " ".join(outcome.output.split())
