"""
A source whose tasks write a journal: each start, poll and stop with its fencing token, into one file for all workers.

So a test judges from outside whether two workers have run a task at the same time, also if they are frozen or killed.
The tasks of a connector misbehave while the file that its setting ``fault`` names has one of these words: ``raise``,
``garbage`` and ``block`` in poll, ``hang`` in stop, ``configs`` (garbage) and ``none`` (no tasks) when they are
configured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
    TaskContext,
)

__all__ = [
    "BLOCKING_SOURCE",
    "JOURNAL_SOURCE",
    "Entry",
    "JournalPen",
    "check_journal",
    "check_order",
    "journal_source",
    "read_journal",
]

JOURNAL_SOURCE = f"{__name__}:JournalConnector"
BLOCKING_SOURCE = f"{__name__}:BlockingConnector"

_PAUSE_S = 0.05


class Entry(NamedTuple):
    """One line of the journal: what a task did, its fencing token, and the process."""

    what: str
    task: str
    token: int
    pid: int


def _fault(settings: Mapping[str, Any]) -> str:
    """Return how the connector has to misbehave now, or ""."""
    path = Path(settings["fault"]) if settings["fault"] else None
    return path.read_text() if path is not None and path.exists() else ""


class JournalPen:
    """Writes the lines of one task, with its fencing token, into the journal."""

    def __init__(self, context: TaskContext, settings: Settings) -> None:
        self._settings = settings
        self._token = context.fencing_token
        self.task = f"{context.connector}-{context.task}"
        self._file = os.open(settings["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str) -> None:
        """Write a line about a call."""
        # One short write to a file that is opened for appending is atomic.
        os.write(self._file, f"{what} {self.task} {self._token} {os.getpid()}\n".encode())

    def block(self) -> None:
        """Write lines while the order of the test is to block."""
        while _fault(self._settings) == "block":
            self.write("block")
            time.sleep(_PAUSE_S)


class JournalTask(SourceTask):
    """Writes a line for each call, and a record for each poll."""

    def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._settings = settings
        self._pen = JournalPen(context, settings)
        self._task = self._pen.task
        self._topic = settings["topic"]
        stored = context.run(context.offset({"task": self._task}))
        self._next = 0 if stored is None else stored["next"]
        self._pen.write("start")

    def poll(self) -> Sequence[SourceRecord]:
        self._pen.write("poll")
        fault = _fault(self._settings)
        if fault == "raise":
            raise RuntimeError("raises as ordered")
        if fault == "garbage":
            return ["garbage"]  # type: ignore[list-item]
        self._pen.block()
        time.sleep(_PAUSE_S)
        number, self._next = self._next, self._next + 1
        value = f"{self._task} {number}".encode()
        return [SourceRecord({"task": self._task}, {"next": self._next}, self._topic, value)]

    def stop(self) -> None:
        self._pen.write("stop")
        while _fault(self._settings) == "hang":
            time.sleep(_PAUSE_S)
        self._pen.write("stopped")


class BlockingTask(JournalTask):
    """Blocks the worker's event loop during each poll."""

    async def poll(self) -> Sequence[SourceRecord]:  # type: ignore[override]
        return super().poll()


class JournalConnector(SourceConnector):
    """Has ``tasks.max`` tasks."""

    task_class = JournalTask
    config = ConfigDefinition(ConfigKey("journal"), ConfigKey("topic"), ConfigKey("fault", default=""))

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config
        self._settings = settings

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        fault = _fault(self._settings)
        if fault == "configs":
            return [7]  # type: ignore[list-item]
        return [] if fault == "none" else [self._config] * most


class BlockingConnector(JournalConnector):
    """Has tasks that block the event loop."""

    task_class = BlockingTask


def journal_source(journal: Path, topic: str, tasks: int, **settings: object) -> dict[str, str]:
    """Return the configuration of a connector; ``restart_policy`` is its setting ``restart.policy``."""
    config = {"connector.class": JOURNAL_SOURCE, "tasks.max": str(tasks), "journal": str(journal), "topic": topic}
    return config | {name.replace("_", "."): str(value) for name, value in settings.items()}


def read_journal(path: Path) -> list[Entry]:
    """Return the lines of a journal, in the order in which they were written."""
    # A line that is being written has no end yet.
    found = [line.split() for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    return [Entry(what, task, int(token), int(pid)) for what, task, token, pid in found]


def check_journal(entries: Sequence[Entry], frozen: Collection[int] = ()) -> None:
    """
    Fail if a task was polled after another run of it had started, or if tokens do not grow.

    A task that its worker starts again under the same claim has the same token. A process that was ``frozen`` may
    finish one call of a task after it continues: it was frozen between its last check of the session and the call.
    """
    newest: dict[str, int] = {}
    finished: set[tuple[str, int]] = set()
    for number, entry in enumerate(entries):
        known = newest.get(entry.task, -1)
        if entry.what == "start":
            assert entry.token >= known, f"line {number}: {entry} follows token {known}"
            newest[entry.task] = entry.token
        elif entry.what == "poll" and entry.token != known and entry.pid in frozen:
            assert (entry.task, entry.token) not in finished, f"line {number}: a second call: {entry}"
            finished.add((entry.task, entry.token))
        elif entry.what in {"poll", "block"}:
            assert entry.token == known, f"line {number}: {entry} beside the run with token {known}"


def check_order(entries: Sequence[Entry]) -> None:
    """Fail if a task was started before its former run had stopped; no process may have been frozen or killed."""
    running: dict[str, Entry] = {}
    for number, entry in enumerate(entries):
        if entry.what == "start":
            assert entry.task not in running, f"line {number}: {entry} beside {running[entry.task]}"
            running[entry.task] = entry
        elif entry.what == "stopped":
            del running[entry.task]
