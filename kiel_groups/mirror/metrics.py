"""Keep the metrics of a task of a mirror by topic: records, bytes, lag, rate, and the time of the last checkpoint."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from kiel_groups.metrics import Metrics
from kiel_groups.mirror.values import SourceBatch
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns

#: The most topics that the metrics of a task name. All other topics of the task count as the topic ``OTHERS``, which is
#: no legal name of a topic.
MOST_TOPICS, OTHERS = 100, "(others)"

#: How often the lag and the rate are measured, in seconds.
_MEASURED_S = 2.0


class MirrorMetrics:
    """
    Keeps the metrics of the partitions that a task copies to the target.

    The lag of a topic includes records that were read and are not written yet. A topic has no lag before the source has
    answered about all its partitions. The time of a topic's last checkpoint is that of the partition whose checkpoint
    is the oldest, of the partitions with a lag. If no partition has a lag, the time is that of the newest checkpoint.
    Before its first checkpoint, a partition has the time of the task's start.

    Args:
        metrics: The metrics of the task by topic.
        partitions: The partitions of the task.
    """

    def __init__(self, metrics: Metrics, partitions: Sequence[TopicPartition]) -> None:
        self._metrics = metrics
        self._labels = _labels(partition.topic for partition in partitions)
        self._partitions: dict[str, list[TopicPartition]] = {}
        for partition in partitions:
            self._partitions.setdefault(self._labels[partition.topic], []).append(partition)
        self._lags: dict[TopicPartition, int] = {}
        self._checkpoints_s = dict.fromkeys(partitions, time.time())
        #: The records that were written since the last measurement, by label.
        self._recent: Counter[str] = Counter()
        self._measured_s = time.monotonic() - _MEASURED_S
        for label, own in self._partitions.items():
            metrics.gauge("mirror_partitions", len(own), topic=label)
            metrics.count("mirror_records", 0, topic=label)
            metrics.count("mirror_bytes", 0, topic=label)

    def measure(self, lags: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """
        Measure the lag and the rate, at most every two seconds. All records that were read must be written.

        Args:
            lags: Returns how many records were not read yet of each partition that the source has answered about.
        """
        now_s = time.monotonic()
        if (took_s := now_s - self._measured_s) < _MEASURED_S:
            return
        self._measured_s = now_s
        self._lags |= lags()
        for label in self._partitions:
            self._metrics.gauge("mirror_records_per_second", self._recent[label] / took_s, topic=label)
        self._recent.clear()
        self._show(self._partitions)

    def begin(
        self, found: Mapping[TopicPartition, Sequence[RecordColumns]], lags: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        """
        Count records that were read as a lag until they are written, which the target may delay.

        Args:
            found: The records by partition.
            lags: As of ``measure``. It is called while the lag of a partition is not known.
        """
        read = {partition: sum(map(len, columns)) for partition, columns in found.items()}
        labels: Iterable[str] = {self._labels[partition.topic] for partition in found}
        if self._lags.keys() < self._checkpoints_s.keys():
            self._lags = {each: lag + read.get(each, 0) for each, lag in lags().items()} | self._lags
            labels = self._partitions
        self._lags |= {each: max(self._lags.get(each, 0), count) for each, count in read.items()}
        self._show(labels)

    def end(self, batches: Sequence[SourceBatch]) -> None:
        """Count the records of batches as written, with their checkpoints."""
        now_s = time.time()
        for batch in batches:
            label = self._labels[batch.partition.topic]
            self._metrics.count("mirror_records", batch.records, topic=label)
            self._metrics.count("mirror_bytes", batch.size_bytes, topic=label)
            self._recent[label] += batch.records
            self._lags[batch.partition] = max(0, self._lags[batch.partition] - batch.records)
            self._checkpoints_s[batch.partition] = now_s
        self._show({self._labels[batch.partition.topic] for batch in batches})

    def _show(self, labels: Iterable[str]) -> None:
        for label in labels:
            own = self._partitions[label]
            behind = [self._checkpoints_s[each] for each in own if self._lags.get(each)]
            newest_s = max(self._checkpoints_s[each] for each in own)
            if self._lags.keys() >= set(own):
                self._metrics.gauge("mirror_lag_records", sum(self._lags[each] for each in own), topic=label)
            self._metrics.gauge("mirror_checkpoint_timestamp_seconds", min(behind, default=newest_s), topic=label)


class BackMetrics:
    """
    Keeps the metrics of the partitions that a task copies back.

    Args:
        metrics: The metrics of the task by topic.
        topics: The topic of the source by partition of the target.
    """

    def __init__(self, metrics: Metrics, topics: Mapping[TopicPartition, str]) -> None:
        self._metrics = metrics
        labels = _labels(topics.values())
        self._labels = {partition: labels[topic] for partition, topic in topics.items()}
        self._recent: Counter[str] = Counter()
        self._measured_s = time.monotonic()
        for label, count in Counter(self._labels.values()).items():
            metrics.gauge("mirror_partitions", count, topic=label)
            metrics.count("mirror_records_copied_back", 0, topic=label)

    def end(self, partition: TopicPartition, records: int) -> None:
        """Count records of a partition as copied back."""
        label = self._labels[partition]
        self._metrics.count("mirror_records_copied_back", records, topic=label)
        self._recent[label] += records

    def measure(self, left: Callable[[TopicPartition], int | None]) -> None:
        """
        Measure the lag and the rate, at most every two seconds.

        Args:
            left: Returns how many offsets of a partition are not copied back, or None if that is not known yet.
        """
        now_s = time.monotonic()
        if (took_s := now_s - self._measured_s) < _MEASURED_S:
            return
        self._measured_s = now_s
        lags: dict[str, list[int | None]] = {}
        for partition, label in self._labels.items():
            lags.setdefault(label, []).append(left(partition))
        for label, found in lags.items():
            self._metrics.gauge("mirror_records_per_second", self._recent[label] / took_s, topic=label)
            if None not in found:
                self._metrics.gauge("mirror_lag_records", sum(filter(None, found)), topic=label)
        self._recent.clear()


def _labels(topics: Iterable[str]) -> dict[str, str]:
    """Return the label of each topic: its name, or ``OTHERS``."""
    return {topic: topic if at < MOST_TOPICS else OTHERS for at, topic in enumerate(sorted(set(topics)))}
