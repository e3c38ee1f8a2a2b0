"""Keep what callers wait for while the buffer has nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kiel_groups.clients.fetch.ready_queue import Selection
from kiel_groups.model import TopicPartition

__all__ = ["StarvingCallers"]

#: The least number of selections that are kept before those of callers that wait no more are dropped.
_MOST_SELECTIONS = 1_000


class StarvingCallers:
    """
    The selections that calls of ``pop`` have asked for without success, as long as nothing of them is buffered.

    A selection remains until a batch of it is buffered, whatever other callers find meanwhile: its caller waits, and
    does not ask again before that. So the selection of a caller that is gone costs one batch at most.

    Args:
        selections: What callers wait for.
    """

    def __init__(self, selections: Iterable[Selection] = ()) -> None:
        #: By their only partition, or else by topic: there may be thousands of callers with a partition each.
        self._by_key: dict[TopicPartition | str | None, set[Selection]] = {}
        self._count = 0
        self._most = _MOST_SELECTIONS
        for each in selections:
            self.add(each)

    def __len__(self) -> int:
        return self._count

    def add(self, selection: Selection) -> None:
        """
        Note that a caller finds nothing.

        Partitions that the selection excludes count, too. Another caller waits for them now, and the caller that
        excludes them may get them when the other one is gone.
        """
        if selection.excluded:
            selection = Selection(selection.topic, selection.partitions)
        partitions = selection.partitions
        key = selection.topic if partitions is None or len(partitions) != 1 else next(iter(partitions))
        same = self._by_key.setdefault(key, set())
        self._count += selection not in same
        same.add(selection)

    def has(self, partition: TopicPartition) -> bool:
        """Return whether a caller waits for this partition."""
        return any(each.has(partition) for key in _keys(partition) for each in self._by_key.get(key, ()))

    def feed(self, partition: TopicPartition) -> None:
        """Remove the selections of a partition that has a batch now: their callers are awake, or come late."""
        for key in _keys(partition):
            if key in self._by_key:
                self._replace(key, {each for each in self._by_key[key] if not each.has(partition)})

    def limit(self, waiting: Collection[frozenset[TopicPartition]]) -> None:
        """
        Drop selections of partitions for which no caller waits, if there are too many.

        A caller that does not wait adds its selection again when it asks again. There are only as many selections of
        topics as topics.
        """
        for key in list(self._by_key):
            kept = {each for each in self._by_key[key] if each.partitions is None or each.partitions in waiting}
            self._replace(key, kept)
        self._most = _MOST_SELECTIONS + 2 * self._count

    @property
    def is_over(self) -> bool:
        """Whether there are so many selections that ``limit`` should be called."""
        return self._count > self._most

    def _replace(self, key: TopicPartition | str | None, kept: set[Selection]) -> None:
        self._count += len(kept) - len(self._by_key[key])
        if kept:
            self._by_key[key] = kept
        else:
            del self._by_key[key]


def _keys(partition: TopicPartition) -> tuple[TopicPartition, str, None]:
    return partition, partition.topic, None
