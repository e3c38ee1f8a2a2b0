"""``kiel-groups spark archive``: what is wrong is told before Spark starts, and in the words of the command line."""

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
    """The one line with which a command is refused."""
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
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, message: str
) -> None:
    """One line, and status 2; nobody is asked, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KIEL_GROUPS_ZOOKEEPER", raising=False)
    assert refused(capsys, *words.split()).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert "pyspark missing" in (line := refused(capsys, "views", "--output", "out"))
    assert "kiel-groups[spark]" in line


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before Spark fails on it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(ConfigError, match="Spark needs Java 17 or later"):
        start_session("archive", master=None, log=None)


@pytest.mark.parametrize("text", ["spark.executor.memory", "executor.memory=4g"])
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    """Spark would pass over it."""
    with pytest.raises(ConfigError, match=f"--conf: '{text}' given; expected such as"):
        start_session("archive", master=None, settings=[text], log=None)


# ---------------------------------------------------------------------- what Spark says


def test_an_error_of_ours_is_found_in_what_spark_says() -> None:
    """Without the tracebacks of two languages; the user's stay the user's."""
    text = (
        "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n"
        '  File "stream.py", line 60, in latestOffset\n'
        "kiel_groups.errors.UnknownTopicError: views: there is no such topic\n\tat org.apache.spark.Query.run"
    )
    told = plain_error(text)
    assert isinstance(told, ConfigError)
    assert str(told) == "views: there is no such topic"
    for name in ("OffsetOutOfRangeError", "BrokerError"):
        assert not isinstance(plain_error(f"kiel_groups.errors.{name}: views:0: gone"), ConfigError)
    assert isinstance(plain_error("kiel_groups.errors.OffsetOutOfRangeError: views:0: gone"), OffsetOutOfRangeError)


@pytest.mark.parametrize("text", ["Multiple streaming jobs detected for 3", "Race while writing batch 7"])
def test_two_runs_at_once_areplain_error(text: str) -> None:
    """Where no lock could keep the second one out."""
    assert isinstance(plain_error(f"org.apache.spark.SparkException: {text}"), ConfigError)


def test_a_machine_that_is_too_busy_is_told() -> None:
    """It may be less busy at the next attempt."""
    told = plain_error(
        "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
    )
    assert told.retriable


def test_a_python_that_cannot_run_workers_is_told() -> None:
    """Without PySpark, or without this package: what it says itself, and what to do."""
    lacks_pyspark = (
        "An error occurred while calling o45.load.\n: org.apache.spark.SparkException: \nError from python worker:\n"
        "  /opt/bin/python3: No module named pyspark\nPYTHONPATH was:\n  /lake/jars\njava.io.EOFException"
    )
    for text, told in (
        (
            lacks_pyspark,
            "Spark's Python does not start: /opt/bin/python3: No module named pyspark; set PYSPARK_PYTHON to",
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kiel. Make", "Spark's Python knows no data source"),
    ):
        found = plain_error(text)
        assert isinstance(found, ConfigError)
        assert str(found).startswith(told)
        assert "kiel-groups[spark]" in str(found)


def test_what_a_worker_raised_is_told() -> None:
    """Spark's first line is about a query or a call, Python's last one about the matter."""
    told = plain_error(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure\n"
        'Traceback (most recent call last):\n  File "worker.py", line 1\n'
        "RuntimeError: the Spark worker on lake-7 has no module kiel_groups: install it there\n\tat java.A.b\n"
        "Caused by: java.io.IOException: gone"
    )
    assert str(told) == "Spark failed: the Spark worker on lake-7 has no module kiel_groups: install it there"
    told = plain_error("An error occurred while calling o1.start.\n: java.io.IOException: no space left\n\tat java.A.b")
    assert str(told) == "Spark failed: no space left"


def test_anything_else_is_told_in_a_line() -> None:
    """The first that says something."""
    told = plain_error("\n[TASK_FAILED] disk full\n\tat java.io.File\n")
    assert type(told) is KielGroupsError
    assert str(told) == "Spark failed: [TASK_FAILED] disk full"


# ---------------------------------------------------------------------- what a person sees


def test_a_plan_is_plain_text() -> None:
    """What, how much, and where to."""
    plan = ArchivePlan(RANGES, "file:///lake", "file:///lake/_checkpoint", True, ("kafka:9092",))
    assert list(plan_lines(plan)) == [
        "would read 60 records at most",
        "  views: 60 offsets in 5 partitions (0: 10–20, 1: 10–21, 2: 10–22, 3: 10–23, …)",
        "into file:///lake, a new archive; checkpoint file:///lake/_checkpoint",
    ]


def test_a_summary_is_plain_text() -> None:
    """For people, and for programs with every partition."""
    summary = ArchiveSummary(RANGES, 60, 4, 52_100_000, 2.0, "lake", "file:///lake")
    assert list(summary_lines(summary)) == [
        "archived 60 records in 2.0 s, 30 records/s",
        "  views: 60 offsets in 5 partitions (0: 10–20, 1: 10–21, 2: 10–22, 3: 10–23, …)",
        "into file:///lake: 4 new files, 52.1 MB",
        "committed for the group lake",
    ]
    document = json.loads(json.dumps(summary_document(summary)))
    assert document["topics"]["views"]["4"] == {"from": 10, "to": 24}


def test_a_run_that_found_nothing_says_so() -> None:
    """A rate of nothing, and files that there are not, would have to be read before one knew."""
    nothing = tuple(OffsetRange(TopicPartition("views", number), 20, 20) for number in range(1))
    assert list(summary_lines(ArchiveSummary(nothing, 0, 0, 0, 2.0, "lake", "file:///lake"))) == [
        "archived nothing new in 2.0 s",
        "  views: 0 offsets in 1 partition (0: 20–20)",
        "into file:///lake: no new files",
        "committed for the group lake",
    ]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks_and_the_second_ends(number: int, status: int) -> None:
    """Both signals alike, in any order: a second one finds the system's own way, which nothing holds up."""
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


def test_progress_is_a_line_a_batch_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """How many, how fast, and how many are left, if nobody says by what was there at the start."""
    with progress(Lines(), 100, quiet=False) as tell:
        tell(Batch(0, 60, 1040))
        tell(Batch(1, 30, None))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("info: 60 records, ")
    assert first.endswith(" records/s, 1,040 left")
    assert second.endswith(" records/s, 10 left")
