"""What an archive is made of, and where: checked once, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.errors import ConfigError
from kiel_groups.spark.jobs.folders import local_path, located, names_a_host
from kiel_groups.spark.options.read_options import ReadOptions
from kiel_groups.spark.reader_factory import can_bound_batches

__all__ = ["BATCH_RECORDS", "ArchiveSettings"]

#: Enough for files of a useful size, and a batch of some seconds to half a minute.
BATCH_RECORDS = 5_000_000
#: Within the output: readers of Parquet pass over what begins like this.
_CHECKPOINT = "_checkpoint"


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """
    An archive: topics, and the folder that their records go to.

    Args:
        topics: Names; or else ``pattern``, a regular expression that whole names match.
        output: A folder: a path of this machine, or a URI that Spark knows, such as ``hdfs://…``.
        brokers: Some of the cluster, with commas between them.
        zookeeper: Its servers; needed where ``group`` is given.
        group: Who commits; without one, each archive has a group of its own, ``kiel-spark-…``.
        start: ``earliest``, ``latest`` or ``group``: where partitions begin that are there at the first run. Later
            runs go on, and partitions that appear later are read from their beginning.
        checkpoint: A folder for what has been done; ``_checkpoint`` in the output unless told.
        batch_records: How many records a batch has at most; None: no bound. Before Spark 4.2 there can be none.
        interval_s: How often to read, without end, in seconds; None: read what is there, and stop.
        fail_on_data_loss: Whether records that are gone before they were archived end the run; otherwise they are
            warned of, and it goes on with what there is, of a topic that was made anew from its beginning.

    Raises:
        ConfigError: A value that cannot work, or two that do not go together.
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
            raise ConfigError("output: nothing given; name the folder that the archive is to stand in")
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
        """The output, with its scheme."""
        return located(self.output)

    @property
    def checkpoint_uri(self) -> str:
        """The checkpoint, with its scheme."""
        return located(self.checkpoint) if self.checkpoint else f"{self.output_uri}/{_CHECKPOINT}"

    @property
    def is_local(self) -> bool:
        """Whether both folders are on this machine, and so can be looked into without Spark."""
        return None not in (local_path(self.output_uri), local_path(self.checkpoint_uri))

    def source_options(self) -> dict[str, str]:
        """The options of the data source."""
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
        """The default is no bound where there can be none; one that was asked for is refused by the source there."""
        return self.batch_records is not None and (can_bound_batches() or self.batch_records != BATCH_RECORDS)

    def read_options(self) -> ReadOptions:
        """
        What the data source makes of them.

        Raises:
            ConfigError: As the source does.
        """
        return ReadOptions.parse(self.source_options(), streaming=True)
