"""
The display of downloads: progress bars on a terminal, and lines at the start and the end of each download elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kiel_groups.embedded.jars.classpaths import ClassPath, kafka_class_path, zookeeper_class_path
from kiel_groups.embedded.jars.jar_cache import jar_folder
from kiel_groups.errors import ServerError

__all__ = ["fetch_broker", "fetch_servers", "prefetch"]

_NEWER_ZOOKEEPER = "3.9.5"
_OLDER_ZOOKEEPER = "3.4.6"


def prefetch(wanted: Iterable[ClassPath], console: Console) -> dict[str, ServerError]:
    """
    Fetch the jars of these class paths that are not in the cache, and show the progress.

    Returns:
        The errors, by the name of the class path that could not be fetched.
    """
    failures = {}
    with _Bars(console) if console.is_terminal else _Lines(console) as display:
        for class_path in wanted:
            try:
                jar_folder(class_path, display.show)
            except ServerError as error:
                failures[class_path.name] = error
    return failures


def fetch_broker(console: Console, kafka: str) -> None:
    """
    Fetch the jars of a Kafka release into the cache.

    Raises:
        ConfigError: The version is not in the table.
        ServerError: The jars cannot be fetched.
    """
    for failure in prefetch([kafka_class_path(kafka)], console).values():
        raise failure


def fetch_servers(console: Console, kafka: str, zookeeper: str | None = None) -> str:
    """
    Fetch the jars of a Kafka and of a ZooKeeper release into the cache.

    Args:
        console: Shows the progress.
        kafka: The version of Kafka.
        zookeeper: The version of ZooKeeper. None means the newer version or, if that cannot be fetched (only Maven
            has it), the version on Kafka's class path.

    Returns:
        The version of ZooKeeper that was fetched.

    Raises:
        ConfigError: A version is not in the table.
        ServerError: The jars cannot be fetched.
    """
    brokers, servers = kafka_class_path(kafka), zookeeper_class_path(zookeeper or _NEWER_ZOOKEEPER)
    failures = prefetch([brokers, servers], console)
    if brokers.name in failures:
        raise failures[brokers.name]
    if servers.name not in failures:
        return zookeeper or _NEWER_ZOOKEEPER
    if zookeeper is not None:
        raise failures[servers.name]
    reason = failures[servers.name]
    console.print(
        f"ZooKeeper {_NEWER_ZOOKEEPER} cannot be fetched; using {_OLDER_ZOOKEEPER} instead: {reason}", markup=False
    )
    return _OLDER_ZOOKEEPER


class _Display(Protocol):
    def __enter__(self) -> _Display: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def show(self, class_path: str, done: int, total: int, what: str) -> None: ...


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        #: Whether the last line about a class path said that it is complete.
        self._shown: dict[str, bool] = {}

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def show(self, class_path: str, done: int, total: int, what: str) -> None:
        complete = done == total
        if self._shown.get(class_path) is complete:
            return
        self._shown[class_path] = complete
        line = f"{total} jars of {class_path} fetched" if complete else f"fetching {total} jars of {class_path} …"
        self._console.print(line, markup=False, highlight=False)


class _Bars:
    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.fields[class_path]:<15}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Display:
        self._bars.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bars.stop()

    def show(self, class_path: str, done: int, total: int, what: str) -> None:
        if class_path not in self._tasks:
            self._tasks[class_path] = self._bars.add_task("", total=total, class_path=class_path)
        self._bars.update(self._tasks[class_path], completed=done, description=what[:24])
