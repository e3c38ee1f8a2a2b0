"""Run a streaming query to its end: report its batches, stop it between two batches, and shorten Spark's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from kiel_groups import errors
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.spark.checkpoint import Positions

__all__ = ["JAVA_ENDED", "Batch", "LateWorkerError", "plain_error", "run_query", "shortened_spark_errors"]

#: The errors of the first call and of later calls into Spark's Java process after it has died.
JAVA_ENDED = (Py4JNetworkError, ConnectionError)
#: How often to poll the query, in seconds: each poll is a call to Spark's Java process.
_POLL_S = 0.2
#: An error of this package, raised in any process: Spark passes on its text, with a traceback or two.
_OURS = re.compile(r"kiel_groups\.errors\.(\w+): (.+)")
#: The last line of a Python traceback, and the class names before a message of Java.
_PYTHON_RAISED = re.compile(r"(?!org\.|java\.|Caused by)(?:[\w.]+\.)?\w*Error: (.+)")
_JAVA_RAISED = re.compile(r"^: (?:[\w.$]+: )?")
#: What Spark reports if its Python cannot run workers, and if that Python does not have this package.
_NO_WORKER = ("Error from python worker:", "PYTHONPATH was:")
_NO_SOURCE = "Failed to find the data source: kiel"
_REMEDY = "set PYSPARK_PYTHON to one that has kiel-groups[spark], on the driver and on every worker"
_OF_THE_CALL = "An error occurred while calling "
#: The errors that callers distinguish from other failures.
_DISTINGUISHED = (ConfigError, OffsetOutOfRangeError)
#: What Spark reports if a Python process took longer to start than Spark's limit, which is fixed.
_LATE_WORKER = ("Python worker failed to connect back", "waiting for the Python worker to connect back")
#: What Spark reports if two queries record a batch of the same number.
_TWO_QUERIES = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected", "Race while writing batch")


class LateWorkerError(KielGroupsError):
    """Spark gave up on a Python process that started too slowly; nothing was read or written."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Batch:
    """
    A completed batch of a query.

    ``records`` is its number of records. ``left`` is the number of offsets still to be read, or None if unknown.
    """

    number: int
    records: int
    left: int | None


def run_query(query: StreamingQuery, on_batch: Callable[[Batch], None], stopping: Event) -> None:
    """
    Wait for the end of a query, and report its batches.

    Args:
        query: A running query.
        on_batch: Called after each batch that had records.
        stopping: The event that stops the query after the running batch.

    Raises:
        KielGroupsError: The query failed; the message is one line.
    """
    last, awaited = -1, None
    with shortened_spark_errors():
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # it takes fractions
            last = _report_batches(query, last, on_batch)
            if not stopping.is_set():
                continue
            if awaited is None:
                awaited = last
            # The stop may interrupt a batch that has started since then. The next run repeats that batch.
            if last > awaited or not query.status["isTriggerActive"]:
                query.stop()
        _report_batches(query, last, on_batch)


def _report_batches(query: StreamingQuery, last: int, on_batch: Callable[[Batch], None]) -> int:
    for progress in query.recentProgress:
        if progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            on_batch(Batch(last, progress.numInputRows, _left(json.loads(progress.json))))
    return last


def _left(progress: dict[str, Any]) -> int | None:
    (source,) = progress["sources"]
    if not source.get("latestOffset"):
        return None
    ends = Positions.from_json(source["latestOffset"]).offsets()
    reached = Positions.from_json(source["endOffset"]).offsets()
    return sum(max(0, end - reached.get(partition, 0)) for partition, end in ends.items())


@contextmanager
def shortened_spark_errors() -> Iterator[None]:
    """
    Turn Spark's errors in the block into errors with a message of one line.

    Raises:
        ConfigError: A setting is wrong, or two runs are active at once.
        OffsetOutOfRangeError: Records were lost before they were read.
        KielGroupsError: Spark failed for another reason.
    """
    try:
        yield
    except JAVA_ENDED as error:
        raise KielGroupsError(
            "Spark's Java process has ended in the middle of its work (was it killed, or was there no memory for it?);"
            " what was done stays: run it again, with more memory or smaller batches if need be"
        ) from error
    except (PySparkException, Py4JError) as error:
        raise plain_error(str(error)) from error


def plain_error(text: str) -> KielGroupsError:
    """Return the cause of the failure that Spark reports in ``text``, as an error with a message of one line."""
    if any(words in text for words in _TWO_QUERIES):
        return ConfigError("checkpoint: another query writes with this checkpoint; wait for its end")
    if any(words in text for words in _LATE_WORKER):
        return LateWorkerError("Spark gives Python ten seconds to start, and this machine was too busy; try again")
    if found := _OURS.findall(text):
        name, message = found[-1]
        kind = getattr(errors, name, KielGroupsError)
        raised_as = next((each for each in _DISTINGUISHED if issubclass(kind, each)), KielGroupsError)
        return raised_as(message.strip())
    _, found_start, printed = text.rpartition(_NO_WORKER[1])[0].rpartition(_NO_WORKER[0])
    if found_start and printed.strip():
        return ConfigError(f"Spark's Python does not start: {printed.strip().splitlines()[-1].strip()}; {_REMEDY}")
    if _NO_SOURCE in text:
        return ConfigError(f"Spark's Python knows no data source 'kiel'; {_REMEDY}")
    return KielGroupsError(f"Spark failed: {_error_line(text)}")


def _error_line(text: str) -> str:
    """Return the last error of a Python traceback, or the first line that is not about Spark's call."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_OF_THE_CALL)]
    raised = [found[1] for line in lines if (found := _PYTHON_RAISED.fullmatch(line))]
    if raised:
        return raised[-1]
    return _JAVA_RAISED.sub("", lines[0]) if lines else "it does not say why"
