"""Run a job on Spark: start its session, run its streaming query to the end, and shorten Spark's errors."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kiel_groups import errors
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.spark.archive_table import OBSERVED
from kiel_groups.spark.checkpoint import Positions
from kiel_groups.spark.environment import check_java, check_python

log = logging.getLogger(__name__)

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
_CAUSED_BY = "Caused by: "
#: What the source's pickles raise on a worker without this package (``spark_calls``).
_NO_PACKAGE = re.compile(r"RuntimeError: (the Spark worker on .+)")
#: What Spark's own code raises on a worker without pyarrow, before it unpickles the source.
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_NO_PROGRAM = re.compile(r'(?:\((\S+) executor \S+\).*)?Cannot run program "([^"]+)"')
_FULL = re.compile(r"(?:No space left on device|Disk quota exceeded|File too large|not enough space on the disk)")
_NOT_A_MASTER = re.compile(r"Could not parse Master URL: (.+)")
#: What Spark reports to callers after it has given up on a master, which it tries for a minute, and logs only.
_NO_MASTER = ("All masters are unresponsive", "Cannot call methods on a stopped SparkContext")
#: The errors that callers distinguish from other failures.
_DISTINGUISHED = (ConfigError, OffsetOutOfRangeError)
#: What Spark reports if a Python process took longer to start than Spark's limit, which is fixed.
_LATE_WORKER = ("Python worker failed to connect back", "waiting for the Python worker to connect back")
#: What Spark reports if two queries record a batch of the same number.
_TWO_QUERIES = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected", "Race while writing batch")


class LateWorkerError(KielGroupsError):
    """Spark gave up on a Python process that started too slowly. Nothing was read or written; the caller may retry."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Batch:
    """
    A completed batch of a query.

    ``records`` is its number of records, without bad records. ``left`` is the number of offsets from the end of the
    batch to the ends of the logs, or None if unknown. ``counts`` has the metrics that the query observes, by name.
    """

    number: int
    records: int
    left: int | None
    counts: Mapping[str, int] = field(default_factory=dict)


def run_query(query: StreamingQuery, on_batch: Callable[[Batch], None], stopping: Event) -> None:
    """
    Wait for the end of a query, and report its batches.

    Args:
        query: A running query.
        on_batch: Called after each batch that had records.
        stopping: The event that stops the query after the running batch.

    Raises:
        KielGroupsError: The query failed. See ``shortened_spark_errors``.
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
            document = json.loads(progress.json)
            counts = document.get("observedMetrics", {}).get(OBSERVED, {})
            records = progress.numInputRows - counts.get("bad_records", 0)
            on_batch(Batch(last, records, _left(document), counts))
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
        # A captured exception's own text lacks the causes further down in Java's stack.
        raise plain_error(f"{error}\n{getattr(error, '_stackTrace', None) or ''}") from error


def plain_error(text: str) -> KielGroupsError:
    """Return the cause of the failure that Spark reports in ``text`` as an error with a one-line message."""
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
    return _known_failure(text) or KielGroupsError(f"Spark failed: {_error_line(text)}")


def _known_failure(text: str) -> KielGroupsError | None:
    """
    Return an error with the remedy for a failure of the machine or the cluster, or None if the remedy is not known.
    """
    if found := _NO_PACKAGE.search(text):
        return ConfigError(found[1].strip())
    if found := _NO_MODULE.search(text):
        return ConfigError(
            f"the Python of a Spark worker has no module {found[1]}: install kiel-groups[spark] on every worker, or"
            " ship it with the job, as docs/spark-installing.rst shows"
        )
    if found := _NO_PROGRAM.search(text):
        host, program = found.groups()
        where = f"on {host}, there is" if host else "there is"
        return ConfigError(f"PYSPARK_PYTHON: {where} no program {program} that can be run; {_REMEDY}")
    if found := _FULL.search(text):
        return KielGroupsError(
            f"a disk is full ({found[0]}): that of the archive, of its checkpoint or of Spark's temporary files"
            " (spark.local.dir). Completed batches stay; free some space, and run it again"
        )
    if found := _NOT_A_MASTER.search(text):
        return ConfigError(f"--master: {found[1].strip()} given; expected {_MASTERS}")
    if any(words in text for words in _NO_MASTER):
        return KielGroupsError(
            "Spark's master did not accept this job within a minute, or has ended it; is it of the same release as this"
            " Spark, and does it run?"
        )
    return None


def _error_line(text: str) -> str:
    """
    Return the message of the last error in a Python traceback.

    If the text has no traceback, return the first line that is not about Spark's call, and the last cause.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_OF_THE_CALL)]
    raised = [found[1] for line in lines if (found := _PYTHON_RAISED.fullmatch(line))]
    if raised:
        return raised[-1]
    if not lines:
        return "it does not say why"
    first = _JAVA_RAISED.sub("", lines[0])
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    cause = _JAVA_RAISED.sub("", f": {causes[-1]}") if causes else ""
    return first if cause in first else f"{first.rstrip('.')}: {cause}"


_MASTERS = "such as local[4], spark://host:7077, yarn or k8s://https://host:443"
_STANDALONE = "spark://"
#: How long a master may take to accept a connection, in seconds.
_CONNECT_S = 5.0

#: Set if spark-submit has started Java for this process, with the master and the settings of its command line.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_STANDARD_ERROR = 2
#: How long a Java process that has not started yet may take to end, in seconds.
_JAVA_END_S = 10

#: Defaults on a single machine: no ports for other hosts, no web interface; the user can override them.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # Since Spark 4.1: without it, a small task takes more than twice as long.
    "spark.python.unix.domain.socket.enabled": "true",
}


def start_session(name: str, *, master: str | None, settings: Sequence[str] = (), log: Path | None) -> SparkSession:
    """
    Start Spark, or connect to the Java process that spark-submit has started.

    Args:
        name: The name of the job in Spark's web interface.
        master: The cluster to run on. None means spark-submit's cluster or, without spark-submit, all cores of this
            machine.
        settings: Settings of Spark, each as ``name=value``.
        log: The file for the standard error of Java and the workers. If None, they use this process's standard error.

    Raises:
        ConfigError: There is no Java, it is too old, there is no Python for workers, or a setting is not valid.
        KielGroupsError: No master can be reached, or Spark did not start. The message has the cause from Spark's log.
    """
    pairs = settings_of(settings)
    if _SUBMITTED not in os.environ:
        check_java()
        master = master or "local[*]"
    check_python()
    local = master is not None and master.startswith("local")
    if local:
        # Otherwise workers would use the first python3 in the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        check_master(master)
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **(_LOCAL_SETTINGS if local else {}), **pairs}.items():
        builder = builder.config(key, value)
    with _errors_to(log), shortened_spark_errors(), _no_java_left():
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise KielGroupsError(f"Spark did not start: {cause_in(log)}") from error


def stop_session(spark: SparkSession) -> None:
    """Stop a session. If its Java process has ended, log that and return: the job has already reported the failure."""
    try:
        spark.stop()
    except JAVA_ENDED as error:
        log.info("Spark could not be stopped, as its Java process has ended: %s", error)


def settings_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the settings of Spark in texts such as ``spark.cores.max=4``. Raise ConfigError for any other text."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigError(f"--conf: {text!r} given; expected such as 'spark.executor.memory=4g'")
        found[name.strip()] = value.strip()
    return found


@contextmanager
def _no_java_left() -> Iterator[None]:
    """
    End the Java process if the block ends before pyspark has connected to it, as after Ctrl-C.

    Java stores its port in a folder. Only then does it watch a pipe from this process, and end with this process. If
    pyspark is interrupted before the port is stored, pyspark deletes the folder. Then Java fails to store the port, and
    would run for ever.
    """
    launcher: Any = java_gateway
    started: list[subprocess.Popen[bytes]] = []
    popen = launcher.Popen

    def start(*args: Any, **settings: Any) -> subprocess.Popen[bytes]:
        # A KeyboardInterrupt is raised in the main thread, where it may come before the new process is known.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: started.append(popen(*args, **settings))).result()
        return started[-1]

    launcher.Popen = start
    try:
        yield
    finally:
        launcher.Popen = popen
        if started and SparkContext._gateway is None:
            # SIGTERM lets Java delete its temporary folders.
            started[-1].terminate()
            try:
                started[-1].wait(_JAVA_END_S)
            except subprocess.TimeoutExpired:
                started[-1].kill()


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """
    Redirect standard error to a file within the block. Do nothing for None.

    Processes that are started in the block write to the file after the block, too.
    """
    if log is None:
        yield
        return
    kept = os.dup(_STANDARD_ERROR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), _STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)


#: What precedes the cause of a failed start in the log of Java, or in the output of its launcher.
_START_FAILED = re.compile(r"(?:Exception in thread \S+ |Caused by: |Error: )(?:[\w.$]+: )?(.+)")


def cause_in(log: Path | None) -> str:
    """
    Return the reason why Spark did not start: the last cause in its log, or else the last line of the log.

    Without a log, return a text that refers to the output.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log is not None else ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    causes = [found[1] for line in lines if (found := _START_FAILED.match(line))]
    return (causes or lines or ["see its output above"])[-1]


def check_master(master: str) -> None:
    """
    Check that one of the masters of a standalone cluster accepts connections. Do nothing for other kinds of masters.

    Without this check, Spark would try for a minute before it fails.

    Raises:
        ConfigError: An address in the URL lacks its host or its port.
        KielGroupsError: No master accepts a connection; the message has the reason for each master.
    """
    if not master.startswith(_STANDALONE):
        return
    failures = []
    for each in master.removeprefix(_STANDALONE).split(","):
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"--master: {master!r} given; expected {_MASTERS}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:
            failures.append(f"{each}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise KielGroupsError(f"--master: no Spark master can be reached ({'; '.join(failures)}); is it running there?")
