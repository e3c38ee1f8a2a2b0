"""Fetch jars, and show the downloads: as progress bars on a terminal, elsewhere as a line at the start and the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from kiel_groups.embedded.jars import Progress, jar_folder
from kiel_groups.embedded.releases import (
    DEFAULT_ZOOKEEPER,
    EARLIER_ZOOKEEPER,
    ClassPath,
    kafka_release,
    zookeeper_class_path,
)
from kiel_groups.errors import ServerError


def prefetch(wanted: Iterable[ClassPath], console: Console) -> dict[str, ServerError]:
    """
    Fetch the jars of these class paths into the cache if they are not there, and show the progress.

    Returns:
        The error of each class path that could not be fetched, by its name.
    """
    failures = {}
    with _bars(console) if console.is_terminal else _lines(console) as show:
        for class_path in wanted:
            try:
                jar_folder(class_path, show)
            except ServerError as error:
                failures[class_path.name] = error
    return failures


def fetch_broker(console: Console, kafka: str) -> None:
    """
    Fetch the jars of a Kafka release into the cache, and show the progress.

    Raises:
        ConfigError: The version is not in the table.
        ServerError: The jars cannot be fetched.
    """
    for failure in prefetch([kafka_release(kafka).classes], console).values():
        raise failure


def fetch_servers(console: Console, kafka: str, zookeeper: str | None = None) -> str:
    """
    Fetch the jars of a Kafka release and of a ZooKeeper release into the cache.

    Args:
        console: Shows the progress.
        kafka: The version of Kafka.
        zookeeper: The version of ZooKeeper. None means 3.9.5 or, if 3.9.5 cannot be fetched, 3.4.6. Only Maven has
            3.9.5.

    Returns:
        The version of ZooKeeper to run. 3.4.6 is among the jars of Kafka 0.8.2.2, which are then fetched, too.

    Raises:
        ConfigError: A version is not in the table.
        ServerError: The jars cannot be fetched.
    """
    brokers, servers = kafka_release(kafka).classes, zookeeper_class_path(zookeeper or DEFAULT_ZOOKEEPER)
    failures = prefetch([brokers, servers], console)
    if brokers.name in failures:
        raise failures[brokers.name]
    if servers.name not in failures:
        return zookeeper or DEFAULT_ZOOKEEPER
    if zookeeper is not None:
        raise failures[servers.name]
    reason = failures[servers.name]
    console.print(
        f"ZooKeeper {DEFAULT_ZOOKEEPER} cannot be fetched; using {EARLIER_ZOOKEEPER} instead: {reason}", markup=False
    )
    for failure in prefetch([zookeeper_class_path(EARLIER_ZOOKEEPER)], console).values():
        raise failure
    return EARLIER_ZOOKEEPER


@contextmanager
def _lines(console: Console) -> Iterator[Progress]:
    #: Whether the last line about a class path reported its completion, by the name of the class path.
    shown: dict[str, bool] = {}

    def show(class_path: str, done: int, total: int, what: str) -> None:
        complete = done == total
        if shown.get(class_path) is complete:
            return
        shown[class_path] = complete
        line = f"{total} jars of {class_path} fetched" if complete else f"fetching {total} jars of {class_path} …"
        console.print(line, markup=False, highlight=False)

    yield show


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    tasks: dict[str, TaskID] = {}

    def show(class_path: str, done: int, total: int, what: str) -> None:
        if class_path not in tasks:
            tasks[class_path] = bars.add_task("", total=total, class_path=class_path)
        bars.update(tasks[class_path], completed=done, description=what[:24])

    with Bars(
        TextColumn("{task.fields[class_path]:<15}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
    ) as bars:
        yield show
