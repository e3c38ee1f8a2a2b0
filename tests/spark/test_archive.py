"""Archives: their files contain every record of a topic exactly once, also after failures."""

from __future__ import annotations

import fcntl
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kiel_groups.cli.app import run
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, KielGroupsError, OffsetOutOfRangeError, UnknownTopicError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark import ArchiveSettings, ArchiveSummary, archive, plan_archive, verify_archive
from kiel_groups.spark.archive_folders import ArchiveFolders
from kiel_groups.spark.archive_table import TimeField, check_pattern
from kiel_groups.spark.checkpoint import OffsetRange
from kiel_groups.spark.columns import parse_schema
from kiel_groups.spark.folders import FolderError, HadoopFolder
from tests.helpers.cluster_data import incarnation_of, stored_offsets, zookeeper
from tests.helpers.spark.archives import assert_complete, settings
from tests.helpers.spark.queries import await_partitions, brokers_of, fill, filled, recreate_topic
from tests.proxies import KafkaProxy, damaging

# The session takes seconds to start, and a minute on a busy computer.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.xdist_group("spark-session")]

Unique = Callable[[str], str]

VALUES = [b"%d" % number for number in range(60)]


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of three partitions with 60 records."""
    return filled(cluster_39, unique("topic"), 3, VALUES)


@pytest.mark.slow
def test_each_run_adds_new_records(spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path) -> None:
    """The record limit sets the number of batches. The summary counts the records, and the group has committed them."""
    wanted = settings(
        cluster_39, topic, tmp_path, batch_records=25, group=f"lake-{topic}", zookeeper=cluster_39.zk_hosts
    )
    batches = []
    first = archive(spark, wanted, on_batch=batches.append)
    assert ([batch.records for batch in batches], [batch.left for batch in batches]) == ([25, 25, 10], [35, 10, 0])
    assert (first.records, sum(each.size for each in first.ranges), first.group) == (60, 60, f"lake-{topic}")
    # The partitions of a topic share a file, unless a batch has more of it than the wanted size.
    assert first.files == 3
    assert_complete(spark, cluster_39, topic, tmp_path)

    fill(cluster_39, topic, [b"60", b"61", None], partition=1)
    second = archive(spark, wanted)
    assert (second.records, second.files) == (3, 1)
    assert [each.size for each in second.ranges] == [0, 3, 0]
    assert_complete(spark, cluster_39, topic, tmp_path)
    assert archive(spark, wanted).files == 0
    verified = verify_archive(wanted.output, brokers=brokers_of(cluster_39))
    assert ([log.rows for log in verified.logs], verified.is_complete) == ([each.end for each in second.ranges], True)
    ends = {each.topic_partition.partition: each.end for each in second.ranges}
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, f"lake-{topic}", topic) == ends


def test_a_table_has_the_day_of_the_run(spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path) -> None:
    """The table has the day of the run, and the other documented columns. The summary has the size of the files."""
    summary = archive(spark, settings(cluster_39, topic, tmp_path))
    rows = spark.read.parquet(str(tmp_path / "archive"))
    columns = {"topic", "date", "partition", "offset", "archived_at", "key", "value", "incarnation"}
    assert set(rows.columns) == columns
    in_utc = "to_utc_timestamp(archived_at, current_timezone())"
    assert rows.where(f"date = to_date({in_utc})").count() == len(VALUES)
    files = list((tmp_path / "archive" / f"topic={topic}").rglob("*.parquet"))
    assert (summary.files, summary.size_bytes) == (len(files), sum(path.stat().st_size for path in files))


SECONDS = 1_795_871_100  # 2026-11-28 13:05:00 UTC


def test_times_are_in_utc_whatever_the_session_says(spark: SparkSession) -> None:
    """A text without a zone is UTC. What is no time is null, and so is a time without a date."""
    cases: dict[str, dict[Any, int | None]] = {
        "at": {
            "2026-11-28T13:05:00Z": SECONDS,
            "2026-11-28T13:05:00.123456789Z": SECONDS,
            "2026-11-28T14:05:00+01:00": SECONDS,
            "2026-11-28T14:05:00+0100": SECONDS,
            "2026-11-28T14:05+01": SECONDS,
            " 2026-11-28 13:05:00 ": SECONDS,
            "2026-11-28T13:05": SECONDS,
            "2026-11-28": SECONDS - 13 * 3600 - 300,
            # Not in Berlin, where clocks are put forward.
            "2026-03-29T02:30:00": 1_774_751_400,
            "13:05:00Z": None,
            "2026": None,
            "yesterday": None,
            "": None,
            SECONDS: None,
        },
        "at:s": {SECONDS: SECONDS, f"{SECONDS}.5": SECONDS, 1.7958711e9: SECONDS, "NaN": None, -1: None},
        "at:ms": {SECONDS * 1000 + 999: SECONDS, "x": None, SECONDS * 10**6: None, "9" * 40: None},
        "at:dd/MM/yyyy HH:mm": {"28/11/2026 13:05": SECONDS, "28/11/2026": None, "28/11/2026 13:05 X": None},
        "at:dd/MMM/yyyy:HH:mm:ss Z": {"28/Nov/2026:14:05:00 +0100": SECONDS},
    }
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for text, times in cases.items():
            field = TimeField.parse(text)
            check_pattern(spark, field)
            values = spark.createDataFrame([(json.dumps({"at": each}),) for each in times], "value string")
            found = values.select(field.seconds(values["value"]).alias("s")).collect()
            assert dict(zip(times, (row["s"] for row in found), strict=True)) == times
        for pattern in ("YYYY", "hour'", "QQQQQQ"):
            with pytest.raises(ConfigError, match=r"^time_field: .* is no pattern with which Spark parses times"):
                check_pattern(spark, TimeField("at", pattern))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_fields_of_values_become_columns(
    spark: SparkSession, cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    A topic with a schema ends at a value that does not fit, and the other topic, whose values are no JSON, is archived.
    With ``bad_records="quarantine"``, the side table has the values that do not fit. Records are in the hour of their
    event, or of their arrival if they have no time. The schema may grow.
    """
    topic, plain = filled(cluster_39, unique("topic"), 1, []), filled(cluster_39, unique("plain"), 1, [b"no JSON"])
    values = [
        b'{"user": "ann", "amount": 1.5, "at": "2026-11-01T10:30:00+01:00", "more": {"n": 1}}',
        b'{"user": "bob", "amount": "x", "at": "2026-11-02"}',
        b"\xff no JSON",
        None,
        b'{"user": "eve", "tags": ["a", null], "at": "2026-11-01T23:59:00Z"}',
    ]
    for value in values:
        fill(cluster_39, topic, [value], partition=0)
    schema = parse_schema("user STRING, amount DOUBLE, tags ARRAY<STRING>, at TIMESTAMP")
    wanted = settings(cluster_39, topic, tmp_path, schemas={topic: schema}, time_field="at", roll="hour")
    wanted = replace(wanted, topics=(topic, plain))
    summary = archive(spark, wanted)
    reason = f'{topic}:0 at offset 1: the value does not fit the schema: amount is "x", expected a number of a double'
    assert summary.not_archived[topic].startswith(reason)
    assert [each.size for each in summary.ranges] == [1, 0]
    batches = []
    summary = archive(spark, replace(wanted, bad_records="quarantine"), on_batch=batches.append)
    assert (summary.records, summary.untimed, len(summary.bad_records)) == (3, 1, 2)
    assert [(batch.records, batch.counts["bad_records"]) for batch in batches] == [(3, 2)]
    assert verify_archive(wanted.output).is_complete
    bad = spark.read.parquet(f"{wanted.output}/_quarantine").orderBy("offset").select("offset", "raw").collect()
    assert [(row.offset, bytes(row.raw)) for row in bad] == list(enumerate(values))[1:3]

    fill(cluster_39, topic, [b'{"user": "joe", "more": {"n": 2}, "at": "1970-01-01"}'], partition=0)
    grown = parse_schema("more STRUCT<n: INT>, user STRING, amount DOUBLE, tags ARRAY<STRING>, at TIMESTAMP")
    with pytest.raises(ConfigError, match=f"schema: of {topic}, user is removed, and this archive has such a column"):
        archive(spark, replace(wanted, schemas={topic: parse_schema("more STRUCT<n: INT>")}))
    archive(spark, replace(wanted, schemas={topic: grown}, bad_records="skip"))
    rows = spark.read.option("mergeSchema", True).parquet(wanted.output).orderBy("topic", "offset").collect()
    alone, *rows = sorted(rows, key=lambda row: (row.topic != plain, row.offset))
    assert (bytes(alone.value), alone.user) == (b"no JSON", None)
    assert [(row.offset, row.user, row.amount, row.tags, row.more) for row in rows] == [
        (0, "ann", 1.5, None, None),
        (3, None, None, None, None),
        (4, "eve", None, ["a", None], None),
        (5, "joe", None, None, (2,)),
    ]
    assert rows[0]["at"].astimezone(UTC) == datetime(2026, 11, 1, 9, 30, tzinfo=UTC)
    arrived = rows[1].archived_at.astimezone(UTC)
    assert [(str(row.date), row.hour) for row in rows] == [
        ("2026-11-01", 9),
        (f"{arrived:%Y-%m-%d}", arrived.hour),
        ("2026-11-01", 23),
        ("1970-01-01", 0),
    ]


def test_a_stopped_run_ends_after_its_batch(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """The batches of the stopped run are complete and committed. The next run reads the rest."""
    stopping = Event()
    some = archive(
        spark,
        settings(cluster_39, topic, tmp_path, batch_records=1),
        on_batch=lambda batch: stopping.set(),
        stopping=stopping,
    )
    assert 0 < some.records < len(VALUES)
    assert some.records == sum(each.size for each in some.ranges)
    assert some.group is not None
    with zookeeper(cluster_39) as client:
        assert sum(stored_offsets(client, some.group, topic).values()) == some.records
    rest = archive(spark, settings(cluster_39, topic, tmp_path))
    assert (some.records + rest.records, rest.group) == (len(VALUES), some.group)
    assert_complete(spark, cluster_39, topic, tmp_path)


def test_a_run_with_an_interval_continues_until_it_is_stopped(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """Records that are produced during the run are archived, too."""
    stopping, records = Event(), []

    def note(batch: Any) -> None:
        records.append(batch.records)
        if len(records) == 1:
            fill(cluster_39, topic, [b"60"])
        else:
            stopping.set()

    archive(spark, settings(cluster_39, topic, tmp_path, interval_s=0.1), on_batch=note, stopping=stopping)
    assert records == [60, 1]
    assert_complete(spark, cluster_39, topic, tmp_path)


def test_two_runs_at_once_are_refused(spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path) -> None:
    """
    A second run at the same time fails at once. The lock belongs to the process, so the end of the process always
    releases it.
    """
    wanted = settings(cluster_39, topic, tmp_path)
    checkpoint = tmp_path / "archive" / "_checkpoint"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "archive.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"another archive runs on .*_checkpoint; wait for its end"):
            archive(spark, wanted)
    assert archive(spark, wanted).records == len(VALUES)


def test_an_error_in_spark_gives_one_line(spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path) -> None:
    """The error is one line, and the next run archives the records of the failed run."""
    wanted = settings(cluster_39, topic, tmp_path)
    ArchiveFolders(wanted, None).claim(brokers_of(cluster_39).split(","))
    obstacle = tmp_path / "archive" / f"topic={topic}"
    obstacle.touch()
    with pytest.raises(KielGroupsError, match=r"^Spark failed: ") as found:
        archive(spark, wanted)
    assert "\n" not in str(found.value)
    obstacle.unlink()
    assert archive(spark, wanted).records == len(VALUES)
    assert_complete(spark, cluster_39, topic, tmp_path)


def test_remote_folders_are_read_and_written_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The test uses a local folder, which Spark's Java can read and write, too."""
    folder = HadoopFolder(spark, f"file://{tmp_path}/far away")
    assert (folder.names(), folder.names("in"), folder.read("in/a")) == ([], [], None)
    folder.write("in/a", "größer\n")
    folder.write("in/a", "größer\nals\n")
    assert folder.read("in/a") == "größer\nals\n"
    assert (set(folder.names()), set(folder.names("in")) - {".a.crc"}) == ({"in"}, {"a"})


def test_a_folder_that_spark_cannot_use_gives_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """A scheme without a file system and a file in place of a folder give errors without a traceback."""
    with pytest.raises(FolderError, match=r"^nosuch://lake cannot be used: .*No FileSystem for scheme \"nosuch\"$"):
        HadoopFolder(spark, "nosuch://lake")
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=r"/file cannot be used: [^\n]+$"):
        HadoopFolder(spark, f"file://{tmp_path}/file").write("in/a", "text")


# ---------------------------------------------------------------------- topics that fail


@pytest.mark.slow
def test_a_failing_topic_does_not_stop_the_others(
    spark: SparkSession, cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    Damaged messages end the archiving of two topics, of one in the first batch and of the other in a later one. The
    third topic is archived to its end. A run that does not name the two leaves them where they are. With
    ``bad_records="quarantine"`` all topics are archived, and the side table has the damaged messages.
    """
    values = [b"%d" % number for number in range(30)]
    first = filled(cluster_39, unique("first"), 1, [b"spoilt?", *values[1:]])
    later = filled(cluster_39, unique("later"), 1, [*values[:25], b"spoilt?", *values[26:]])
    whole = filled(cluster_39, unique("whole"), 1, values)

    def ends(summary: ArchiveSummary) -> dict[str, int]:
        return {each.topic_partition.topic: each.end for each in summary.ranges}

    with KafkaProxy(cluster_39.brokers[0], damaging(b"spoilt?")) as proxy:
        wanted = ArchiveSettings(
            topics=(first, later, whole), output=str(tmp_path / "archive"), brokers=proxy.address, batch_records=30
        )
        summary = archive(spark, wanted)
        assert list(summary.not_archived) == [first, later]
        cause = "a message that does not match its CRC; to pass it, set bad_records to 'quarantine' or 'skip'"
        assert summary.not_archived[first] == f"{first}:0 at offset 0: {cause}"
        assert summary.not_archived[later] == f"{later}:0 at offset 25: {cause}"
        assert (ends(summary)[first], ends(summary)[whole]) == (0, 30)
        assert summary.records == sum(ends(summary).values())
        assert verify_archive(wanted.output).is_complete

        fill(cluster_39, whole, [b"30"])
        dropping = archive(spark, replace(wanted, topics=(whole,)))
        assert (dropping.dropped, dropping.not_archived) == (tuple(sorted([first, later])), {})
        assert (dropping.records, ends(dropping)) == (1, {whole: 31})

        words = ["spark", "archive", first, later, whole, "--brokers", proxy.address, "--output", wanted.output]
        again = archive(spark, replace(wanted, bad_records="quarantine"))
        assert (again.not_archived, ends(again)) == ({}, {first: 30, later: 30, whole: 31})
        assert [(row.topic, row.offset, row.end_offset) for row in again.bad_records] == sorted(
            [(first, 0, 1), (later, 25, 26)]
        )
        assert run([*words, "--dry-run", "--bad-records", "skip"]) == 0
    rows = spark.read.parquet(wanted.output).select("topic", "offset").collect()
    assert sorted(map(tuple, rows)) == sorted(
        [(first, offset) for offset in range(1, 30)]
        + [(later, offset) for offset in range(30) if offset != 25]
        + [(whole, offset) for offset in range(31)]
    )
    bad = spark.read.parquet(f"{wanted.output}/_quarantine").collect()
    assert [bytes(row["raw"]).endswith(b"spoilt>") for row in bad] == [True, True]
    assert verify_archive(wanted.output).is_complete


def test_a_failing_topic_does_not_stop_the_others_on_another_file_system(
    spark: SparkSession, cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    Hadoop's ``viewfs`` is another file system for this package. Without a lock there, the run has to be the only one,
    as its caller says.
    """
    hadoop: Any = spark._jsc
    hadoop.hadoopConfiguration().set("fs.viewfs.mounttable.lake.link./archives", f"file://{tmp_path}")
    bad = filled(cluster_39, unique("bad"), 1, [b"spoilt?", b"1"])
    whole = filled(cluster_39, unique("whole"), 1, VALUES)
    with KafkaProxy(cluster_39.brokers[0], damaging(b"spoilt?")) as proxy:
        wanted = ArchiveSettings(topics=(bad, whole), output="viewfs://lake/archives/one", brokers=proxy.address)
        with pytest.raises(KielGroupsError, match=f"^{bad}:0 at offset 0: a message that does not match its CRC"):
            archive(spark, wanted)
        summary = archive(spark, replace(wanted, is_only_run=True))
        assert (list(summary.not_archived), summary.records, summary.files) == ([bad], len(VALUES), 1)
    rows = spark.read.parquet(wanted.output).select("topic", "offset").collect()
    assert sorted(map(tuple, rows)) == [(whole, offset) for offset in range(len(VALUES))]


# ---------------------------------------------------------------------- losses


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for one second, instead of thirty, to see whether lost data reappears."""
    given = ArchiveSettings.source_options
    quick = {"fetchOffset.retryIntervalMs": "10", "kafka.request.timeout.ms": "1000"}
    monkeypatch.setattr(ArchiveSettings, "source_options", lambda settings: {**given(settings), **quick})


def test_losses_are_accounted(
    spark: SparkSession,
    cluster_39: Cluster,
    unique: Unique,
    tmp_path: Path,
    impatient: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A topic is created again twice: the first new log is shorter than the old one, the second one has grown past it. A
    run and a dry run fail with the offset and the remedies. With ``fail_on_data_loss=False``, the new log is archived
    from its beginning, and the losses are in the summary and in ``_losses``. An archive with ZooKeeper, which has no
    run between the two, has the incarnation in each row and each loss; the one without tells logs apart by a message.
    """
    topic = filled(cluster_39, unique("topic"), 1, VALUES)
    informed = settings(cluster_39, topic, tmp_path / "informed", zookeeper=cluster_39.zk_hosts)
    plain = settings(cluster_39, topic, tmp_path / "plain")
    for wanted in (informed, plain):
        archive(spark, wanted)
    shorter, longer = [b"a", b"b"], [b"%d" % number for number in range(500, 580)]
    before = incarnation_of(cluster_39, topic)

    def lose(wanted: ArchiveSettings, reached: int, new_log: list[bytes], old: int | None, new: int | None) -> None:
        words = ["spark", "archive", topic, "--brokers", brokers_of(cluster_39), "--output", wanted.output]
        words += [] if wanted.zookeeper is None else ["--zookeeper", wanted.zookeeper]
        for further in (["--dry-run"], []):
            assert run([*words, *further]) == 1
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith(f"error: {topic}:0: offset {reached} is to be read next, and ")
            assert (f"(incarnation {old}, and now {new})" in error) == (old is not None)
            assert "an archive: in another folder" in error
            assert error.endswith("or give --allow-loss to continue with what there is")
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}:0: offset {reached} is to be read next"):
            archive(spark, wanted)
        assert run([*words, "--dry-run", "--allow-loss", "--json"]) == 0
        (lost,) = json.loads(capsys.readouterr().out)["lost"]["topics"][topic]["0"]
        assert (lost["from"], lost["to"], lost["incarnation"]) == (reached, None, old)
        summary = archive(spark, replace(wanted, fail_on_data_loss=False))
        assert summary.records == len(new_log)
        assert summary.ranges == (OffsetRange(TopicPartition(topic, 0), 0, len(new_log), new),)
        assert [(loss.start, loss.end, loss.incarnation) for loss in summary.lost] == [(reached, None, old)]

    recreate_topic(cluster_39, topic, 1, shorter)
    lose(plain, len(VALUES), shorter, None, None)
    recreate_topic(cluster_39, topic, 1, longer)
    now = incarnation_of(cluster_39, topic)
    lose(plain, len(shorter), longer, None, None)
    lose(informed, len(VALUES), longer, before, now)
    again = archive(spark, informed)
    assert (again.records, again.lost) == (0, ())

    def rows_of(wanted: ArchiveSettings, table: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = spark.read.parquet(f"{wanted.output}{table}").select(*columns).collect()
        return sorted(tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in rows)

    assert rows_of(informed, "", "incarnation", "offset", "value") == [
        (zxid, *row) for zxid, log in ((before, VALUES), (now, longer)) for row in enumerate(log)
    ]
    assert rows_of(plain, "", "offset", "value") == sorted(
        row for log in (VALUES, shorter, longer) for row in enumerate(log)
    )
    assert rows_of(informed, "/_losses", "incarnation", "offset", "end_offset") == [(before, 60, 60)]
    assert rows_of(plain, "/_losses", "incarnation", "offset", "end_offset") == [(None, 2, 2), (None, 60, 60)]
    for wanted, expected in (
        (informed, [(before, 60, [("lost", 60, 60)]), (now, 80, [])]),
        (plain, [(None, 142, [("lost", 2, 2), ("lost", 60, 60)])]),
    ):
        verified = verify_archive(wanted.output, brokers=brokers_of(cluster_39), zookeeper=cluster_39.zk_hosts)
        found = [(log.incarnation, log.rows, [each[:3] for each in log.differences]) for log in verified.logs]
        assert (found, verified.is_complete) == (expected, True)


def test_a_deleted_topic_is_not_archived(cluster_39: Cluster, unique: Unique, tmp_path: Path, impatient: None) -> None:
    """
    The reason reports lost records and not an unknown topic. Another topic is archived. A topic that has never existed
    ends the run.
    """
    gone, kept = filled(cluster_39, unique("gone"), 1, VALUES), filled(cluster_39, unique("kept"), 1, VALUES)
    wanted = ArchiveSettings(topics=(gone, kept), output=str(tmp_path / "archive"), brokers=brokers_of(cluster_39))
    write_started(wanted, {gone: 60, kept: 50})
    ZooKeeperTopics(cluster_39.zk_hosts).delete(gone)
    await_partitions(cluster_39, gone, 0)
    plan = plan_archive(wanted)
    assert plan.ranges == (OffsetRange(TopicPartition(kept, 0), 50, 60),)
    assert list(plan.not_archived) == [gone]
    assert plan.not_archived[gone].startswith(f"{gone}:0: offset 60 is to be read next, and there is no such partition")
    assert plan_archive(replace(wanted, topics=(kept,))).dropped == (gone,)
    informed = plan_archive(replace(wanted, zookeeper=cluster_39.zk_hosts))
    assert ", and there is no such partition: the topic was deleted. " in informed.not_archived[gone]
    for zookeeper_hosts in (None, cluster_39.zk_hosts):
        verified = verify_archive(wanted.output, brokers=brokers_of(cluster_39), zookeeper=zookeeper_hosts)
        deleted = {log.topic_partition.topic: log.unexplained[-1] for log in verified.logs}[gone]
        assert deleted == ("gone", 60, 60, "there is no such partition: the topic was deleted")
    lenient = replace(wanted, fail_on_data_loss=False)
    assert plan_archive(lenient).ranges == (OffsetRange(TopicPartition(kept, 0), 50, 60),)
    with pytest.raises(UnknownTopicError, match="no broker knows"):
        plan_archive(replace(lenient, topics=(gone, kept, unique("never"))))


def write_started(wanted: ArchiveSettings, reached: dict[str, int]) -> None:
    """Write the folders of a run that has archived ``reached[topic]`` records of partition 0 of each topic."""
    ArchiveFolders(wanted, None).claim(wanted.brokers.split(","))
    place = {topic: {"0": {"from": 0, "to": end, "token": 7}} for topic, end in reached.items()}
    lists = {"_checkpoint/offsets/0": f"v1\n{{}}\n{json.dumps(place)}", "_checkpoint/commits/0": "v1\n{}"}
    for name, text in {**lists, "_spark_metadata/0": "v1"}.items():
        path = Path(wanted.output, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


# ---------------------------------------------------------------------- the command, without Spark


def test_a_dry_run_prints_what_would_be_read(
    cluster_39: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run writes nothing to folders or ZooKeeper."""
    words = ["spark", "archive", topic, "--dry-run", "--brokers", brokers_of(cluster_39), "--zookeeper"]
    words += [cluster_39.zk_hosts, "--group", f"lake-{topic}", "--output", str(tmp_path / "archive")]
    assert run(words) == 0
    assert capsys.readouterr().out.startswith(f"would read 60 records at most\n  {topic}: 60 offsets in 3 partitions (")
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["records"], set(document["topics"][topic]), document["new"]) == (60, {"0", "1", "2"}, True)
    assert list(tmp_path.iterdir()) == []
    with zookeeper(cluster_39) as client:
        assert client.exists(f"/consumers/lake-{topic}") is None


def test_a_missing_topic_is_an_error(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a missing topic, the command neither makes the brokers create the topic nor starts Spark."""
    words = ["spark", "archive", unique("none"), "--brokers", brokers_of(cluster_39), "--output", str(tmp_path / "a")]
    assert run(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'kiel-groups topics list' shows the existing topics" in line


@pytest.mark.parametrize("further", [["--dry-run"], []])
def test_missing_brokers_are_an_error_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], further: list[str]
) -> None:
    """If no broker answers, the error is one line, as for every command, and the command does not start Spark."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["spark", "archive", "views", "--brokers", address, "--output", str(tmp_path / "a"), *further]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: no broker answered: {address}: cannot connect")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_starts_at_the_checkpoint(spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path) -> None:
    """A plan starts at the checkpoint, so it contains new records only."""
    archive(spark, settings(cluster_39, topic, tmp_path))
    fill(cluster_39, topic, [b"60", b"61"])
    plan = plan_archive(settings(cluster_39, topic, tmp_path))
    assert (plan.records, plan.is_new) == (2, False)
