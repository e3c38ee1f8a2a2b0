"""The journal of the connectors of one test of workers: it creates them, has them misbehave, and judges their runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kiel_groups.embedded import Cluster
from tests.helpers.journal_connector import Entry, check_journal, journal_source, read_journal
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, numbers_in

__all__ = ["RECOVERY_S", "Journal", "journal_on"]

#: A session timeout and a rebalance on a busy machine, in seconds.
RECOVERY_S = 60.0


class Journal:
    """The journal of the connectors of one test, and the file that says how they misbehave."""

    def __init__(self, cluster: Cluster, topic: str, folder: Path) -> None:
        self.cluster = cluster
        self.topic = topic
        self._file = folder / "journal.txt"
        self._fault = folder / "fault.txt"
        #: The tasks that have been created.
        self.tasks: set[str] = set()
        #: The processes that were frozen.
        self.frozen: set[int] = set()

    async def create(self, url: str, name: str, tasks: int = 1, **settings: object) -> None:
        """Create a connector through a worker."""
        await ask(url, "POST", "/connectors", {"name": name, "config": self.config(name, tasks, **settings)})

    def config(self, name: str, tasks: int, **settings: object) -> dict[str, str]:
        """Return the configuration of a connector that obeys ``misbehave``."""
        self.tasks |= {f"{name}-{number}" for number in range(tasks)}
        return journal_source(self._file, self.topic, tasks, fault=self._fault, **settings)

    async def create_other(self, url: str, name: str, fault: str) -> None:
        """Create a connector without tasks, because it misbehaves when it configures them."""
        path = self._fault.with_name(f"{name}.txt")
        path.write_text(fault)
        config = journal_source(self._file, self.topic, 1, fault=path)
        await ask(url, "POST", "/connectors", {"name": name, "config": config})

    def misbehave(self, how: str) -> None:
        """Have the connectors misbehave; "" ends that."""
        self._fault.write_text(how)

    def entries(self, what: str = "") -> list[Entry]:
        """Return the lines of the journal, or those of one kind."""
        return [entry for entry in read_journal(self._file) if entry.what == what or not what]

    async def all_run(self, *pids: int) -> None:
        """Wait until every task is polled anew, by these processes only, each of which has some."""
        begin, wanted = len(self.entries()), set(pids or [os.getpid()])

        def polled() -> bool:
            newest = {entry.task: entry.pid for entry in self.entries()[begin:] if entry.what == "poll"}
            return newest.keys() == self.tasks and set(newest.values()) == wanted

        await eventually(polled, f"all tasks run in {wanted}", RECOVERY_S)
        check_journal(self.entries(), self.frozen)

    async def check(self) -> None:
        """Check that no task ran twice at a time, and that all of its records are in the topic."""
        check_journal(self.entries(), self.frozen)
        await numbers_in(self.cluster, self.topic, self.tasks)


async def journal_on(cluster: Cluster, unique: Callable[[str], str], folder: Path) -> Journal:
    """Return a journal with a new topic."""
    topic = unique("topic")
    await cluster.create_topic(topic, 1)
    return Journal(cluster, topic, folder)
