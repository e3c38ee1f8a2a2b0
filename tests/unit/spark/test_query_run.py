"""Errors of Spark, as errors of this package."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.spark.spark_session import plain_error

pytestmark = pytest.mark.unit


def test_an_error_of_this_package_is_found_in_a_message_of_spark() -> None:
    """The tracebacks of Java and Python are removed. A ConfigError stays one, and other errors do not become one."""
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
    """Without a lock, Spark itself detects the second run."""
    assert isinstance(plain_error(f"org.apache.spark.SparkException: {text}"), ConfigError)


def test_a_timeout_on_a_busy_computer_is_retriable() -> None:
    """The next attempt may succeed."""
    error = plain_error(
        "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
    )
    assert error.retriable


def test_the_last_python_that_does_not_start_is_named() -> None:
    """Spark starts several. An output that is blank, or has no end, says nothing."""
    start, end = "Error from python worker:\n", "\nPYTHONPATH was:\n"
    found = plain_error(f"{start}first{end}{start}second\nlast line{end}{start}unfinished")
    assert str(found).startswith("Spark's Python does not start: last line; set")
    assert not isinstance(plain_error(f"{start} \n{end}"), ConfigError)


def test_a_python_that_cannot_run_workers_is_a_config_error() -> None:
    """This Python lacks PySpark or this package. The error has its output, and advice."""
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
    The first line of Spark's message has the query or the call, and the last line of Python's traceback the cause.
    """
    error = plain_error(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure\n"
        'Traceback (most recent call last):\n  File "worker.py", line 1\n'
        "RuntimeError: the Spark worker on lake-7 has no module kiel_groups: install it there\n\tat java.A.b\n"
        "Caused by: java.io.IOException: gone"
    )
    assert isinstance(error, ConfigError)
    assert str(error) == "the Spark worker on lake-7 has no module kiel_groups: install it there"
    found = plain_error(
        "[PYTHON_EXCEPTION] thrown:\nTraceback\nModuleNotFoundError: No module named 'pyarrow'\n at a.b"
    )
    assert isinstance(found, ConfigError)
    assert str(found).startswith("the Python of a Spark worker has no module pyarrow: install kiel-groups[spark] on")
    error = plain_error("An error occurred while calling o1.start.\n: java.io.IOException: gone\n\tat java.A.b")
    assert str(error) == "Spark failed: gone"
    error = plain_error("An error occurred.\n\tat java.A.b\nCaused by: java.B: no\n\tat a.b\nCaused by: java.C: why\n")
    assert str(error) == "Spark failed: An error occurred: why"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030\n\tat java.A.b\n"
            "Caused by: java.io.IOException: No space left on device\n\tat java.A.b",
            KielGroupsError,
            "a disk is full (No space left on device): that of the archive, of its checkpoint or of Spark's temporary",
        ),
        (
            "An error occurred while calling o5.start.\n: org.apache.spark.SparkException: Lost task 0.0 in stage 0.0"
            ' (TID 0) (10.0.0.7 executor 3): java.io.IOException: Cannot run program "/opt/py": error=2, No such file',
            ConfigError,
            "PYSPARK_PYTHON: on 10.0.0.7, there is no program /opt/py that can be run; set PYSPARK_PYTHON to one",
        ),
        (
            ": org.apache.spark.SparkException: Could not parse Master URL: 'sparkk://x'\n\tat java.A.b",
            ConfigError,
            "--master: 'sparkk://x' given; expected such as local[4], spark://host:7077",
        ),
        (
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n\tat java.A.b",
            KielGroupsError,
            "Spark's master did not accept this job within a minute, or has ended it",
        ),
    ],
)
def test_failures_of_the_machine_and_the_cluster_have_a_remedy(
    text: str, kind: type[KielGroupsError], message: str
) -> None:
    """The texts are those of Spark 4.3."""
    error = plain_error(text)
    assert type(error) is kind
    assert str(error).startswith(message)


def test_another_error_is_shown_in_one_line() -> None:
    """The line is the first one of the message that is not empty."""
    error = plain_error("\n[TASK_FAILED] disk full\n\tat java.io.File\n")
    assert type(error) is KielGroupsError
    assert str(error) == "Spark failed: [TASK_FAILED] disk full"
