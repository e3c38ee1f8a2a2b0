"""A streaming query, and who waits for it: its batches told as they end, and an orderly end in between."""

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
from kiel_groups.spark.checkpoint.query_offsets import Positions

__all__ = ["JAVA_IS_GONE", "Batch", "LateWorkerError", "plain_error", "run_query", "spark_errors_told"]

#: What calls into Java raise once that has died: the first one, and those that come after it.
JAVA_IS_GONE = (Py4JNetworkError, ConnectionError)
#: How often to look, in seconds: a look is a question to a process beside us.
_LOOK_S = 0.2
#: One of ours, wherever it was raised: Spark hands on its text, with a traceback or two.
_OURS = re.compile(r"kiel_groups\.errors\.(\w+): (.+)")
#: The last line of a Python traceback, and what stands in front of a message of Java's.
_PYTHON_RAISED = re.compile(r"(?!org\.|java\.|Caused by)(?:[\w.]+\.)?\w*Error: (.+)")
_JAVA_RAISED = re.compile(r"^: (?:[\w.$]+: )?")
#: What Spark says where the Python of its workers cannot run them, and where that does not have this package.
_NO_WORKER = re.compile(r"Error from python worker:\s*\n(.+?)\n\s*PYTHONPATH was:", re.DOTALL)
_NO_SOURCE = "Failed to find the data source: kiel"
_REMEDY = "set PYSPARK_PYTHON to one that has kiel-groups[spark], on the driver and on every worker"
_OF_THE_CALL = "An error occurred while calling "
#: What callers tell from other failures.
_KEPT = (ConfigError, OffsetOutOfRangeError)
#: What Spark says where a process of Python took longer to start than it allows, which nobody can set.
_LATE = ("Python worker failed to connect back", "waiting for the Python worker to connect back")
#: What Spark says where two queries write down a batch of one number.
_TWO_AT_WORK = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected", "Race while writing batch")


class LateWorkerError(KielGroupsError):
    """Spark gave up on a process of Python that it had started; nothing was read or written."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Batch:
    """
    A batch that is done.

    ``records`` is how many it had, ``left`` how many offsets were still to be read; None where Spark does not say.
    """

    number: int
    records: int
    left: int | None


def run_query(query: StreamingQuery, on_batch: Callable[[Batch], None], stopping: Event) -> None:
    """
    Wait for the end of a query.

    Args:
        query: Running.
        on_batch: Called after each batch that had records.
        stopping: Once it is set, the query ends after the batch under way.

    Raises:
        KielGroupsError: The query failed; the text is one line.
    """
    last, awaited = -1, None
    with spark_errors_told():
        while not query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]  # it takes fractions
            last = _tell(query, last, on_batch)
            if not stopping.is_set():
                continue
            if awaited is None:
                awaited = last
            # What has begun since then is cut short, and done again by the next run.
            if last > awaited or not query.status["isTriggerActive"]:
                query.stop()
        _tell(query, last, on_batch)


def _tell(query: StreamingQuery, last: int, on_batch: Callable[[Batch], None]) -> int:
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
def spark_errors_told() -> Iterator[None]:
    """
    Turn what Spark raises in the block into one line.

    Raises:
        ConfigError: It comes of an error that is the user's, or of two runs at once.
        OffsetOutOfRangeError: Records are gone before they were read.
        KielGroupsError: Anything else.
    """
    try:
        yield
    except JAVA_IS_GONE as error:
        raise KielGroupsError(
            "Spark's Java process has ended in the middle of its work (was it killed, or was there no memory for it?);"
            " what was done stays: run it again, with more memory or smaller batches if need be"
        ) from error
    except (PySparkException, Py4JError) as error:
        raise plain_error(str(error)) from error


def plain_error(text: str) -> KielGroupsError:
    """The one line that matters in what Spark says of a failure: ours where it is one of ours, or else its first."""
    if any(words in text for words in _TWO_AT_WORK):
        return ConfigError("checkpoint: another query writes with this checkpoint; wait for its end")
    if any(words in text for words in _LATE):
        return LateWorkerError("Spark gives Python ten seconds to start, and this machine was too busy; try again")
    if found := _OURS.findall(text):
        name, message = found[-1]
        kind = getattr(errors, name, KielGroupsError)
        kept = next((each for each in _KEPT if issubclass(kind, each)), KielGroupsError)
        return kept(message.strip())
    if found := _NO_WORKER.findall(text):
        return ConfigError(f"Spark's Python does not start: {found[-1].strip().splitlines()[-1].strip()}; {_REMEDY}")
    if _NO_SOURCE in text:
        return ConfigError(f"Spark's Python knows no data source 'kiel'; {_REMEDY}")
    return KielGroupsError(f"Spark failed: {_telling(text)}")


def _telling(text: str) -> str:
    """What a traceback of Python ends with, where there is one; else the first line that is not about the call."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_OF_THE_CALL)]
    raised = [found[1] for line in lines if (found := _PYTHON_RAISED.fullmatch(line))]
    if raised:
        return raised[-1]
    return _JAVA_RAISED.sub("", lines[0]) if lines else "it does not say why"
