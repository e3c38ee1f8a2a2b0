"""The settings of an archive, checked once before Spark starts."""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.errors import ConfigError
from kiel_groups.spark.jobs.folders import local_path, located, names_a_host
from kiel_groups.spark.options import ReadOptions
from kiel_groups.spark.reader_factory import can_bound_batches

__all__ = [
    "BATCH_RECORDS",
    "ArchiveSettings",
]


#: Enough for files of a useful size; such a batch takes some seconds to half a minute.
BATCH_RECORDS = 5_000_000
#: The default checkpoint within the output; readers of Parquet ignore names that begin with an underscore.
_CHECKPOINT = "_checkpoint"


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """
    An archive: the topics to read, and the folder of their records.

    Args:
        topics: The names of the topics; empty if ``pattern`` is given.
        pattern: A regular expression that matches the whole names of the topics, instead of ``topics``.
        output: The folder of the archive: a path of this machine, or a URI that Spark knows, such as ``hdfs://…``.
        brokers: Some brokers of the cluster, separated by commas.
        zookeeper: The cluster's ZooKeeper servers; needed if ``group`` is given.
        group: The group to commit offsets for. By default, each archive has a group of its own, ``kiel-spark-…``.
        start: ``earliest``, ``latest`` or ``group``: where the first run starts to read the existing partitions. Later
            runs continue, and partitions that appear later are read from their beginning.
        checkpoint: The folder of the archive's progress; by default ``_checkpoint`` in the output.
        batch_records: The most records of a batch, or None for no bound. Before Spark 4.2, no bound is possible.
        interval_s: The seconds from one batch to the next, until the run is stopped. None means that the run ends when
            it has read the existing records.
        fail_on_data_loss: Whether to end the run if records were lost before they were archived. Otherwise, the run
            logs a warning and continues with the records that are left; a recreated topic is read from its beginning.

    Raises:
        ConfigError: A value is not valid, or two values contradict each other.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    output: str
    brokers: str
    zookeeper: str | None = None
    group: str | None = None
    start: str = "earliest"
    checkpoint: str | None = None
    batch_records: int | None = BATCH_RECORDS
    interval_s: float | None = None
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        if not self.output.strip():
            raise ConfigError("output: nothing given; name the folder of the archive")
        if self.interval_s is not None and self.interval_s <= 0:
            raise ConfigError(f"interval_s: {self.interval_s:g} given; expected seconds above 0")
        for name, text in (("output", self.output), ("checkpoint", self.checkpoint or "")):
            if names_a_host(text):
                raise ConfigError(
                    f"{name}: {text!r} names a host; a folder of this machine is written as 'file:///folder'"
                )
        inside = f"{self.output_uri}/"
        if self.checkpoint_uri.startswith(inside) and not self.checkpoint_uri.startswith(f"{inside}_"):
            raise ConfigError(
                f"checkpoint: {self.checkpoint} is among the records; name a folder outside of the output, or one in it"
                " that begins with '_'"
            )
        self.read_options()

    @property
    def output_uri(self) -> str:
        """The absolute URI of the output."""
        return located(self.output)

    @property
    def checkpoint_uri(self) -> str:
        """The absolute URI of the checkpoint."""
        return located(self.checkpoint) if self.checkpoint else f"{self.output_uri}/{_CHECKPOINT}"

    @property
    def is_local(self) -> bool:
        """Whether both folders are on this machine, and so can be read without Spark."""
        return None not in (local_path(self.output_uri), local_path(self.checkpoint_uri))

    def source_options(self) -> dict[str, str]:
        """Return the settings as options of the data source."""
        named = {
            "kafka.bootstrap.servers": self.brokers,
            "subscribe": ",".join(self.topics) or None,
            "subscribePattern": self.pattern,
            "startingOffsets": self.start,
            "kafka.group.id": self.group,
            "kiel.zookeeper.connect": self.zookeeper,
            "failOnDataLoss": None if self.fail_on_data_loss else "false",
            "maxOffsetsPerTrigger": str(self.batch_records) if self._is_bounded else None,
        }
        return {name: text for name, text in named.items() if text is not None}

    @property
    def _is_bounded(self) -> bool:
        """
        Whether to bound batches.

        Before Spark 4.2, the default bound is left out. Any other bound is passed on, and the source refuses it.
        """
        return self.batch_records is not None and (can_bound_batches() or self.batch_records != BATCH_RECORDS)

    def read_options(self) -> ReadOptions:
        """
        Parse the settings as the data source does.

        Raises:
            ConfigError: The source refuses an option.
        """
        return ReadOptions.parse(self.source_options(), streaming=True)
