"""What a person sees while jars are fetched: bars at a terminal, a line at the start and the end elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kiel_groups.embedded.jars.classpaths import ClassPath, kafka_class_path, zookeeper_class_path
from kiel_groups.embedded.jars.jar_cache import jar_folder
from kiel_groups.errors import ServerError

__all__ = ["fetch_servers", "prefetch"]

_NEWER_ZOOKEEPER = "3.9.5"
_OLDER_ZOOKEEPER = "3.4.6"


def prefetch(wanted: Iterable[ClassPath], console: Console) -> dict[str, ServerError]:
    """
    Have the jars of these class paths in the cache, and show the progress; nothing is shown where all are there.

    Returns:
        The class paths that could not be had, by name, and why.
    """
    failures = {}
    with _Bars(console) if console.is_terminal else _Lines(console) as display:
        for class_path in wanted:
            try:
                jar_folder(class_path, display.show)
            except ServerError as error:
                failures[class_path.name] = error
    return failures


def fetch_servers(console: Console, kafka: str, zookeeper: str | None = None) -> str:
    """
    Have the jars of a Kafka and of a ZooKeeper in the cache.

    Args:
        console: Where the progress appears.
        kafka: Its version.
        zookeeper: Its version; None for the newer one, or, where that cannot be had (it comes by Maven only), the one
            on Kafka's class path.

    Returns:
        The version of ZooKeeper.

    Raises:
        ConfigError: A version that is not in the table.
        ServerError: The jars cannot be had.
    """
    brokers, servers = kafka_class_path(kafka), zookeeper_class_path(zookeeper or _NEWER_ZOOKEEPER)
    failures = prefetch([brokers, servers], console)
    if brokers.name in failures:
        raise failures[brokers.name]
    if servers.name not in failures:
        return zookeeper or _NEWER_ZOOKEEPER
    if zookeeper is not None:
        raise failures[servers.name]
    told = f"ZooKeeper {_NEWER_ZOOKEEPER} cannot be had, {_OLDER_ZOOKEEPER} takes its place: {failures[servers.name]}"
    console.print(told, markup=False)
    return _OLDER_ZOOKEEPER


class _Display(Protocol):
    def __enter__(self) -> _Display: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def show(self, class_path: str, done: int, total: int, what: str) -> None: ...


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, bool] = {}

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def show(self, class_path: str, done: int, total: int, what: str) -> None:
        complete = done == total
        if self._told.get(class_path) is complete:
            return
        self._told[class_path] = complete
        said = f"{total} jars of {class_path} fetched" if complete else f"fetching {total} jars of {class_path} …"
        self._console.print(said, markup=False, highlight=False)


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
