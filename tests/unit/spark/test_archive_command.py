"""``kiel-groups spark archive`` reports mistakes before Spark starts, in the terms of the command line."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.terminal.archive_progress import progress
from kiel_groups.cli.terminal.archive_report import plan_lines, summary_document, summary_lines
from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.termination import BlockingTermination
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import ArchivePlan, ArchiveSummary
from kiel_groups.spark.checkpoint.query_offsets import OffsetRange
from kiel_groups.spark.jobs.query_run import Batch, plain_error
from kiel_groups.spark.jobs.spark_session import start_session

pytestmark = pytest.mark.unit

RANGES = tuple(OffsetRange(TopicPartition("views", number), 10, 20 + number) for number in range(5))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run ``spark archive`` with these arguments, assert that they are refused, and return the line of the error."""
    assert run(["spark", "archive", "--brokers", "127.0.0.1:9", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output out", "error: Name topics, or give --pattern, and not both."),
        ("views --pattern v.* --output out", "error: Name topics, or give --pattern, and not both."),
        ("--pattern ( --output out", "error: --pattern: '(' is no regular expression"),
        ("vi/ews --output out", "error: TOPIC: 'vi/ews'"),
        ("views --output out --group lake", "error: Missing option '--zookeeper'"),
        (
            "views --output out --start group",
            "error: --start: 'group' is where a group has got to; name it with --group",
        ),
        ("views --output out --every soon", "error: --every: 'soon' given"),
        ("views --output out --every 0s", "error: --every: 0 given"),
        ("views --output out --checkpoint out/done", "error: --checkpoint: out/done is among the records"),
        ("views", "error: Missing option '--output'"),
    ],
)
def test_invalid_options_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, message: str
) -> None:
    """Invalid options are refused with one line and exit status 2, before any request or write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KIEL_GROUPS_ZOOKEEPER", raising=False)
    assert refused(capsys, *words.split()).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """If a library is missing, the error says which one, and what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert "pyspark missing" in (line := refused(capsys, "views", "--output", "out"))
    assert "kiel-groups[spark]" in line


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If Java is missing, the error says which version Spark needs, before Spark would fail."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(ConfigError, match="Spark needs Java 17 or later"):
        start_session("archive", master=None, log=None)


@pytest.mark.parametrize("text", ["spark.executor.memory", "executor.memory=4g"])
def test_an_invalid_spark_setting_is_refused(text: str) -> None:
    """An invalid ``--conf`` setting is refused, because Spark itself would ignore it."""
    with pytest.raises(ConfigError, match=f"--conf: '{text}' given; expected such as"):
        start_session("archive", master=None, settings=[text], log=None)


# --- errors of Spark ---


def test_an_error_of_this_package_is_found_in_a_message_of_spark() -> None:
    """
    An error of this package is found in Spark's message, without the tracebacks of Java and Python. A ConfigError stays
    one, and other errors do not become one.
    """
    text = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        '  File "stream.py", line 60, in latestOffset\n'
        "kiel_groups.errors.UnknownTopicError: views: there is no such topic\n\tat org.apache.spark.Query.run"
    )
    error = plain_error(text)
    assert isinstance(error, ConfigError)
    assert str(error) == "views: there is no such topic"
    for name in ("OffsetOutOfRangeError", "BrokerError"):
        assert not isinstance(plain_error(f"kiel_groups.errors.{name}: views:0: gone"), ConfigError)
    assert isinstance(plain_error("kiel_groups.errors.OffsetOutOfRangeError: views:0: gone"), OffsetOutOfRangeError)


@pytest.mark.parametrize("text", ["Multiple streaming jobs detected for 3", "Race while writing batch 7"])
def test_two_concurrent_runs_are_a_config_error(text: str) -> None:
    """Two concurrent runs are a ConfigError. If there is no lock, Spark itself detects the second run."""
    assert isinstance(plain_error(f"org.apache.spark.SparkException: {text}"), ConfigError)


def test_a_timeout_on_a_busy_computer_is_retriable() -> None:
    """A timeout of Spark's worker on a busy computer is a retriable error."""
    error = plain_error(
        "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
    )
    assert error.retriable


def test_a_python_that_cannot_run_workers_is_a_config_error() -> None:
    """
    If Spark's Python cannot run workers, because it lacks PySpark or this package, a ConfigError has its output and
    advice.
    """
    lacks_pyspark = (
        "An error occurred while calling o45.load.\n: org.apache.spark.SparkException: \nError from python worker:\n"
        "  /opt/bin/python3: No module named pyspark\nPYTHONPATH was:\n  /lake/jars\njava.io.EOFException"
    )
    for text, message in (
        (
            lacks_pyspark,
            "Spark's Python does not start: /opt/bin/python3: No module named pyspark; set PYSPARK_PYTHON to",
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kiel. Make", "Spark's Python knows no data source"),
    ):
        found = plain_error(text)
        assert isinstance(found, ConfigError)
        assert str(found).startswith(message)
        assert "kiel-groups[spark]" in str(found)


def test_the_error_of_a_worker_is_shown() -> None:
    """
    For an error of a worker, only the last line of Python's traceback or the message of Java's exception is shown.
    """
    error = plain_error(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure\n"
        'Traceback (most recent call last):\n  File "worker.py", line 1\n'
        "RuntimeError: the Spark worker on lake-7 has no module kiel_groups: install it there\n\tat java.A.b\n"
        "Caused by: java.io.IOException: gone"
    )
    assert str(error) == "Spark failed: the Spark worker on lake-7 has no module kiel_groups: install it there"
    error = plain_error(
        "An error occurred while calling o1.start.\n: java.io.IOException: no space left\n\tat java.A.b"
    )
    assert str(error) == "Spark failed: no space left"


def test_another_error_is_shown_in_one_line() -> None:
    """Any other error of Spark is shown as the first line of its message that is not empty."""
    error = plain_error("\n[TASK_FAILED] disk full\n\tat java.io.File\n")
    assert type(error) is KielGroupsError
    assert str(error) == "Spark failed: [TASK_FAILED] disk full"


# --- output ---


def test_a_plan_is_plain_text() -> None:
    """The plan of a run is printed as text with topics, number of records, and folders."""
    plan = ArchivePlan(RANGES, "file:///lake", "file:///lake/_checkpoint", True, ("kafka:9092",))
    assert list(plan_lines(plan)) == [
        "would read 60 records at most",
        "  views: 60 offsets in 5 partitions (0: 10–20, 1: 10–21, 2: 10–22, 3: 10–23, …)",
        "into file:///lake, a new archive; checkpoint file:///lake/_checkpoint",
    ]


def test_a_summary_is_plain_text() -> None:
    """The summary of a run is printed as text. Its JSON document has each partition."""
    summary = ArchiveSummary(RANGES, 60, 4, 52_100_000, 2.0, "lake", "file:///lake")
    assert list(summary_lines(summary)) == [
        "archived 60 records in 2.0 s, 30 records/s",
        "  views: 60 offsets in 5 partitions (0: 10–20, 1: 10–21, 2: 10–22, 3: 10–23, …)",
        "into file:///lake: 4 new files, 52.1 MB",
        "committed for the group lake",
    ]
    document = json.loads(json.dumps(summary_document(summary)))
    assert document["topics"]["views"]["4"] == {"from": 10, "to": 24}


def test_the_summary_of_a_run_without_records() -> None:
    """The summary of a run without records has neither a rate nor a number of files."""
    nothing = tuple(OffsetRange(TopicPartition("views", number), 20, 20) for number in range(1))
    assert list(summary_lines(ArchiveSummary(nothing, 0, 0, 0, 2.0, "lake", "file:///lake"))) == [
        "archived nothing new in 2.0 s",
        "  views: 0 offsets in 1 partition (0: 20–20)",
        "into file:///lake: no new files",
        "committed for the group lake",
    ]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_requests_the_end_and_the_second_kills(number: int, status: int) -> None:
    """
    The first SIGINT or SIGTERM requests the end, and restores the default handlers. So any second signal kills the
    process.
    """
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        ending = BlockingTermination()
        assert (ending.asked.is_set(), ending.status) == (False, None)
        signal.raise_signal(number)
        assert (ending.asked.is_set(), ending.status) == (True, status)
        assert {signal.getsignal(each) for each in before} == {signal.SIG_DFL}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_progress_without_a_terminal_is_a_line_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Without a terminal, progress is a line for each batch, with the number of records, the rate and the rest. If Spark
    does not report the rest, it is computed from the initial number.
    """
    with progress(Lines(), 100, quiet=False) as report:
        report(Batch(0, 60, 1040))
        report(Batch(1, 30, None))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("info: 60 records, ")
    assert first.endswith(" records/s, 1,040 left")
    assert second.endswith(" records/s, 10 left")
