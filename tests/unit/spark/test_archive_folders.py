"""The folders of an archive: their query, its progress, the files of finished batches, and leftovers of a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import ArchiveSettings
from kiel_groups.spark.archive_folders import ArchiveFolders
from kiel_groups.spark.folders import FolderError, LocalFolder, local_path, located

pytestmark = pytest.mark.unit

BROKERS = ["kafka-1:9092", "kafka-2:9092"]


def settings(folder: Path, *topics: str, **given: Any) -> ArchiveSettings:
    output = given.pop("output", str(folder / "archive"))
    return ArchiveSettings(topics=topics, output=output, brokers=BROKERS[0], **given)


def folders(archive_settings: ArchiveSettings) -> ArchiveFolders:
    return ArchiveFolders(archive_settings, None)


def existing_archive(folder: Path, *topics: str, **given: Any) -> ArchiveSettings:
    """Return the settings of an archive whose folders were claimed."""
    archive_settings = settings(folder, *topics, **given)
    folders(archive_settings).claim(BROKERS)
    return archive_settings


def write_lists(folder: Path, **lists: list[str]) -> None:
    """
    Write lists of files as Spark's sink does. Each keyword is a list's name after an underscore, and its value lists
    the files.
    """
    metadata = folder / "archive" / "_spark_metadata"
    metadata.mkdir(parents=True)
    for name, files in lists.items():
        entries = [
            json.dumps({"path": f"file://{folder}/archive/{each}", "size": 7, "action": "add"}) for each in files
        ]
        (metadata / name.lstrip("_").replace("_", ".")).write_text("\n".join(["v1", *entries]))


def write_batches(folder: Path, ends: list[int], done: int) -> None:
    """
    Write a planned batch for each end offset of a partition, and finish the first ``done`` batches, as Spark does.
    """
    checkpoint = folder / "archive" / "_checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    for number, end in enumerate(ends):
        line = json.dumps({"@query": "abc", "views": {"0": {"from": 5, "to": end, "token": 1}}})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")
        (checkpoint / "offsets" / f".{number}.crc").touch()
    for number in range(done):
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")


# --- places ---


@pytest.mark.parametrize("name", ["output", "checkpoint"])
def test_an_archive_cannot_be_in_a_file(tmp_path: Path, name: str) -> None:
    """An archive's folder that is a file, or is below one, is refused."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "in" / "it"):
        with pytest.raises(ConfigError, match=f"^{name}: {tmp_path}/file is a file; name a folder that can be written"):
            folders(settings(tmp_path, "views", **{name: str(place)}))


def test_a_folder_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A folder without write permission is refused, and the error names the parent folder. ``os.access`` is replaced,
    because root may write everywhere.
    """
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    with pytest.raises(ConfigError, match=f"^output: this user may not write into {tmp_path}; name a folder"):
        folders(settings(tmp_path, "views"))


def test_a_folder_in_which_no_file_can_be_created_is_refused(tmp_path: Path) -> None:
    """
    A folder in which no file can be created is refused, even if its permissions let root write, as in /proc. The check
    leaves no file.
    """
    with pytest.raises(ConfigError, match=r"^output: (nothing can be made in|this user may not write into) /proc"):
        folders(settings(tmp_path, "views", output="/proc/lake"))
    folders(settings(tmp_path, "views"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/lake/a b", "file:///lake/a b"),
        ("file:///lake/views/", "file:///lake/views"),
        ("file:/lake/views", "file:///lake/views"),
        ("hdfs://namenode/lake/", "hdfs://namenode/lake"),
        ("s3a://bucket/lake", "s3a://bucket/lake"),
    ],
)
def test_a_place_has_one_uri(given: str, uri: str) -> None:
    """A folder has one URI for all processes, however its path is written."""
    assert located(given) == uri


def test_a_relative_path_is_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path is a local folder below the current one."""
    monkeypatch.chdir(tmp_path)
    assert local_path(located("views")) == tmp_path / "views"
    assert local_path("hdfs://namenode/views") is None


# --- the query of a folder ---


class Disk:
    """A recorder of fsyncs and renames, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.steps: list[tuple[str, str]] = []
        self._folder = folder
        fsync, replace = os.fsync, os.replace

        def recorded_fsync(descriptor: int) -> None:
            self._record("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        def recorded_replace(source: str, target: str) -> None:
            self._record("rename", str(target))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "replace", recorded_replace)

    def _record(self, step: str, path: str) -> None:
        self.steps.append((step, os.path.relpath(path, self._folder)))


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A file's content and parent folders are synced before it gets its name. So after a crash of the computer, the file
    is complete or does not exist.
    """
    disk = Disk(monkeypatch, tmp_path)
    LocalFolder(f"file://{tmp_path / 'archive'}").write("a/file", "text")
    assert disk.steps == [
        ("fsync", "."),
        ("fsync", "archive"),
        ("fsync", "archive/a/.file.draft"),
        ("rename", "archive/a/file"),
        ("fsync", "archive/a"),
    ]
    disk.steps.clear()
    LocalFolder(f"file://{tmp_path / 'archive'}").write("a/file", "another")
    assert [step for step, _ in disk.steps] == ["fsync", "rename", "fsync"]


def test_a_leftover_is_moved_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A leftover is moved durably: its content is synced, then it is renamed, then the new and the old folder are synced.
    """
    archive = folders(existing_archive(tmp_path, "t"))
    folder = tmp_path / "archive" / "topic=t" / "date=2026-01-01"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"rows")
    disk = Disk(monkeypatch, tmp_path / "archive")
    assert archive.sweep() == 1
    path = "topic=t/date=2026-01-01"
    assert disk.steps[-4:] == [
        ("fsync", f"{path}/part-0.parquet"),
        ("rename", f"_leftovers/{path}/part-0.parquet"),
        ("fsync", f"_leftovers/{path}"),
        ("fsync", path),
    ]
    assert [step for step in disk.steps[:-4] if step[0] == "rename"] == []


def test_nothing_is_written_before_the_claim(tmp_path: Path) -> None:
    """Before ``claim()``, an archive's folders are only read."""
    assert folders(settings(tmp_path, "views")).is_new
    assert list(tmp_path.iterdir()) == []
    assert not folders(existing_archive(tmp_path, "views")).is_new


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """
    A new archive's folder with other files is refused, and the error names some of the files. An empty folder is
    accepted.
    """
    (tmp_path / "archive").mkdir()
    assert folders(settings(tmp_path, "views")).is_new
    for number in range(4):
        (tmp_path / "archive" / f"holiday-{number}.jpg").touch()
    with pytest.raises(
        ConfigError, match=r"^output: .*archive is no archive.*holiday-0.jpg, .*-2.jpg and 1 more.*new folder"
    ):
        folders(settings(tmp_path, "views"))


def test_a_draft_of_a_killed_claim_is_overwritten(tmp_path: Path) -> None:
    """
    If a claim is killed and leaves a draft of the archive's first file, the folder still counts as new. The next claim
    overwrites the draft.
    """

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(FolderError, match="cannot be written: no space left"):
            existing_archive(tmp_path, "views")
    assert list((tmp_path / "archive" / "_checkpoint").iterdir()) != []
    assert folders(settings(tmp_path, "views")).is_new
    assert not folders(existing_archive(tmp_path, "views")).is_new
    assert [path.name for path in (tmp_path / "archive" / "_checkpoint").iterdir()] == ["archive.json"]


def test_a_checkpoint_of_another_query_is_refused(tmp_path: Path) -> None:
    """A checkpoint folder of another query is refused, because it has no description of an archive."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").touch()
    with pytest.raises(ConfigError, match=r"^checkpoint: .*checkpoint is no archive.*metadata"):
        folders(settings(tmp_path, "views", checkpoint=str(tmp_path / "checkpoint")))


def test_output_and_checkpoint_belong_together(tmp_path: Path) -> None:
    """
    An archive is refused if its output is used with another checkpoint, or its checkpoint with another output or after
    it was emptied.

    With another checkpoint, Spark would skip that checkpoint's first batches. With another output, the batches already
    done would be missing.
    """
    existing_archive(tmp_path, "views", checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(
        ConfigError, match=r"^output: .*other given; the archive with the checkpoint .* has .*/archive\. Name"
    ):
        folders(settings(tmp_path, "views", output=str(tmp_path / "other"), checkpoint=str(tmp_path / "checkpoint")))
    with pytest.raises(ConfigError, match=r"^checkpoint: .*new given; the archive with .* has .*/checkpoint\. Name"):
        folders(settings(tmp_path, "views", checkpoint=str(tmp_path / "new")))
    (tmp_path / "checkpoint" / "archive.json").unlink()
    with pytest.raises(ConfigError, match=r"^checkpoint: .* was emptied; .*Restore it"):
        folders(settings(tmp_path, "views", checkpoint=str(tmp_path / "checkpoint")))


def test_topics_may_be_added_and_dropped(tmp_path: Path) -> None:
    """
    Topics may be added to an archive, and dropped. Only other topics are refused, as they may belong to another
    archive, and so is a pattern instead of names.
    """
    existing_archive(tmp_path, "views", "orders")
    folders(settings(tmp_path, "orders", "views", "payments"))
    assert folders(settings(tmp_path, "views")).last_topics == {"views", "orders"}
    with pytest.raises(ConfigError, match=r"^topics: this archive is of views, orders, and none of them is named"):
        folders(settings(tmp_path, "clicks"))
    with pytest.raises(ConfigError, match=r"^topics: this archive was begun with names"):
        folders(settings(tmp_path, pattern="views|orders"))


def test_the_table_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    """
    Other folders are refused, and so is a removed or changed field; fields may be added. An archive of an earlier
    release has days of arrival, and no fields.
    """
    schema = StructType().add("user", StringType())
    existing_archive(tmp_path, "views", time_field="at", roll="hour", schemas={"views": schema})
    # Until there are files, everything may be changed.
    folders(settings(tmp_path, "views"))
    write_lists(tmp_path, _0=["a"])
    write_batches(tmp_path, [10], done=1)
    begun = {
        "time_field": "at:iso",
        "roll": "hour",
        "schemas": {"views": StructType().add("amount", LongType()).add(schema[0])},
    }
    folders(settings(tmp_path, "views", **begun))
    for changed, message in (
        ({"roll": "day"}, "roll: this archive has a folder for each hour, .* continue with 'hour'"),
        ({"time_field": None}, "time_field: none given; .* by the event's time, 'at:iso'.*change 'time_field' in"),
        ({"time_field": "at:s"}, "time_field: at:s given"),
        (
            {"schemas": {"views": StructType().add("user", LongType())}},
            "schema: of views, user was string and is bigint, and ",
        ),
        ({"schemas": {}}, "schema: of views, user is removed"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            folders(settings(tmp_path, "views", **(begun | changed)))
    opened = ArchiveFolders.existing(str(tmp_path / "archive")).settings
    assert (opened.roll, opened.time_field, opened.schemas) == ("hour", "at:iso", {"views": schema})
    path = tmp_path / "archive" / "_checkpoint" / "archive.json"
    known = json.loads(path.read_text())
    earlier = ("output", "checkpoint", "topics", "pattern", "brokers")
    path.write_text(json.dumps({name: known[name] for name in earlier}))
    folders(settings(tmp_path, "views", schemas={"views": schema}))
    with pytest.raises(ConfigError, match="time_field: at given; the folders of this archive are by the time of arr"):
        folders(settings(tmp_path, "views", time_field="at"))


def test_another_cluster_is_refused(tmp_path: Path) -> None:
    """
    An archive of another cluster is refused, and the error says where to record that a cluster has moved. A cluster
    with one broker in common is accepted.
    """
    archive_settings = existing_archive(tmp_path, "views")
    folders(archive_settings).check_brokers(["kafka-2:9092", "kafka-3:9092"])
    with pytest.raises(ConfigError, match=r"^brokers: .*kafka-1:9092.*kafka-9:9092 are others.*archive.json"):
        folders(archive_settings).check_brokers(["kafka-9:9092"])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"output": "x"}'])
def test_an_invalid_description_is_refused(tmp_path: Path, text: str) -> None:
    """An invalid description of an archive, for example one changed by hand, is refused."""
    archive_settings = existing_archive(tmp_path, "views")
    (tmp_path / "archive" / "_archive.json").write_text(text)
    with pytest.raises(ConfigError, match=r"_archive\.json is not what an archive has written"):
        folders(archive_settings)


# --- progress and files ---


def test_a_batch_counts_when_it_is_done(tmp_path: Path) -> None:
    """
    The position of an archive is the end of its last finished batch. A batch that is only planned will be read again.
    """
    archive_settings = existing_archive(tmp_path, "views")
    partition = TopicPartition("views", 0)
    assert folders(archive_settings).positions() is None
    write_batches(tmp_path, [10, 20, 30], done=2)
    write_lists(tmp_path, _0=["a"], _1=["b"])
    progress = folders(archive_settings).positions()
    assert progress is not None
    assert (progress.offsets(), progress.query) == ({partition: 20}, "abc")


def test_an_unfinished_first_batch_leaves_the_start_offsets(tmp_path: Path) -> None:
    """
    If the first batch is not finished, the position of an archive is the start offsets that the source has stored.
    """
    archive_settings = existing_archive(tmp_path, "views")
    write_batches(tmp_path, [10], done=0)
    progress = folders(archive_settings).positions()
    assert progress is not None
    assert progress.offsets() == {TopicPartition("views", 0): 5}


def test_a_missing_batch_is_an_error(tmp_path: Path) -> None:
    """A missing batch in the checkpoint is an error, because its offsets are unknown."""
    archive_settings = existing_archive(tmp_path, "views")
    write_batches(tmp_path, [10, 20, 30], done=2)
    write_lists(tmp_path, _0=["a"], _1=["b"])
    (tmp_path / "archive" / "_checkpoint" / "offsets" / "1").unlink()
    with pytest.raises(ConfigError, match="offsets/1 is damaged or missing"):
        folders(archive_settings).positions()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("metadata", 'delete it and its .crc file; then write {"id": "…"} into it'),
        ("offsets/0", "begin a new archive in another folder"),
        ("offsets/1", "begin a new archive in another folder"),
        ("offsets/2", "delete it and its .crc file; nothing of the batch is archived"),
        ("commits/1", "delete it and its .crc file; the output has the batch"),
    ],
)
@pytest.mark.parametrize("text", [b"", b'v1\n{"from', b"\xff\x00\xfe", b"v1\n[]", b"v1\n{}\n-"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, name: str, remedy: str, text: bytes) -> None:
    """The error says whether the archive can do without the file: not if the output has the batch already."""
    archive_settings = existing_archive(tmp_path, "views")
    write_batches(tmp_path, [10, 20, 30], done=2)
    write_lists(tmp_path, _0=["a"], _1=["b"])
    checkpoint = tmp_path / "archive" / "_checkpoint"
    (checkpoint / "metadata").write_text('{"id":"a"}\n')
    folders(archive_settings)
    (checkpoint / name).write_bytes(text)
    with pytest.raises(ConfigError, match=f"^checkpoint: .*/{name} is damaged or missing; restore it, or {remedy}"):
        folders(archive_settings).history(2)


def test_positions_and_schemas_of_another_form_are_named(tmp_path: Path) -> None:
    """JSON that is not what an archive has written is an error that names the file."""
    archive_settings = existing_archive(tmp_path, "views")
    write_batches(tmp_path, [10, 20], done=1)
    write_lists(tmp_path, _0=["a"])
    checkpoint = tmp_path / "archive" / "_checkpoint"
    (checkpoint / "offsets" / "1").write_text('v1\n{}\n{"views":{"0":{"to":"five"}}}')
    with pytest.raises(ConfigError, match="offsets/1 is damaged or missing; restore it, or delete it"):
        folders(archive_settings)
    (checkpoint / "offsets" / "1").unlink()
    description = checkpoint / "archive.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "schemas": {"views": 5}}))
    with pytest.raises(ConfigError, match=r"^schemas in the description of the archive in .*: \{'views': 5\}"):
        folders(archive_settings)


def test_only_listed_files_count(tmp_path: Path) -> None:
    """
    The files of an archive are those in Spark's lists. Spark compacts the lists from time to time: a compacted list has
    the older entries.
    """
    archive_settings = existing_archive(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _9_compact=["a", "b"], _10=["c"], _11=["d"])
    write_batches(tmp_path, [10] * 12, done=12)
    found = folders(archive_settings).files()
    assert {path.rpartition("/")[2] for path in found} == {"a", "b", "c", "d"}
    assert set(found.values()) == {7}


def test_files_on_other_disks_are_an_error(tmp_path: Path) -> None:
    """Executors on other machines write to their own disks. So the output lacks the files of a completed batch."""
    archive_settings, file = existing_archive(tmp_path, "views"), "topic=views/date=2026-11-29/part-0.parquet"
    write_lists(tmp_path, _0=[file])
    write_batches(tmp_path, [10], done=1)
    home = folders(archive_settings)
    with pytest.raises(ConfigError, match=rf"^output: .*does not have {file}.* in a folder that all machines share"):
        home.check_written(0)
    (tmp_path / "archive" / file).parent.mkdir(parents=True)
    (tmp_path / "archive" / file).touch()
    home.check_written(0)


@pytest.mark.parametrize("hour", ["", "hour=07"])
def test_leftovers_are_moved_aside(tmp_path: Path, hour: str) -> None:
    """
    Files that Spark has written but not listed are moved aside, and their checksums deleted. Listed files, and files
    that Spark has not written, stay.
    """
    archive_settings = existing_archive(tmp_path, "views")
    day = tmp_path / "archive" / "topic=views" / "date=2026-11-21" / hour
    day.mkdir(parents=True)
    for name in ("part-0-x.snappy.parquet", "part-1-y.snappy.parquet", "notes.txt"):
        (day / name).touch()
        (day / f".{name}.crc").touch()
    write_lists(tmp_path, _0=[f"{day.relative_to(tmp_path / 'archive')}/part-0-x.snappy.parquet"])
    write_batches(tmp_path, [10], done=1)
    assert folders(archive_settings).sweep() == 1
    leftovers = tmp_path / "archive" / "_leftovers" / day.relative_to(tmp_path / "archive")
    assert [path.name for path in leftovers.iterdir()] == ["part-1-y.snappy.parquet"]
    assert sorted(path.name for path in day.iterdir()) == [
        ".notes.txt.crc",
        ".part-0-x.snappy.parquet.crc",
        "notes.txt",
        "part-0-x.snappy.parquet",
    ]


@pytest.mark.parametrize("lost", ["all", "the list of the last batch", "the content of the list of the last batch"])
def test_lost_lists_are_an_error(tmp_path: Path, lost: str) -> None:
    """Lost lists are an error. Without them, files of the archive would be mistaken for leftovers."""
    archive_settings = existing_archive(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _1=["b"])
    write_batches(tmp_path, [10, 20], done=2)
    lists = tmp_path / "archive" / "_spark_metadata"
    if lost == "all":
        lists.rename(tmp_path / "moved")
    elif lost == "the list of the last batch":
        (lists / "1").unlink()
    else:
        (lists / "1").write_text("")
    with pytest.raises(ConfigError, match=r"_spark_metadata does not say which files batch [01] has made"):
        folders(archive_settings)


def test_a_gap_in_the_lists_is_an_error(tmp_path: Path) -> None:
    """A gap in the lists is an error, even if the batch of the missing list is not finished."""
    archive_settings = existing_archive(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _2=["c"])
    write_batches(tmp_path, [10, 20, 30], done=0)
    with pytest.raises(ConfigError, match="batch 1 has made"):
        folders(archive_settings)


@pytest.mark.parametrize("left", [0, 1])
def test_a_checkpoint_without_listed_batches_is_refused(tmp_path: Path, left: int) -> None:
    """
    A checkpoint that lacks listed batches is refused. Spark would skip the next batches, because the lists have their
    numbers already.
    """
    archive_settings = existing_archive(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _1=["b"])
    write_batches(tmp_path, [10, 20][:left], done=left)
    with pytest.raises(ConfigError, match="does not know batch 1, which the output has"):
        folders(archive_settings)


def test_an_unfinished_listed_batch_is_accepted(tmp_path: Path) -> None:
    """
    A batch that is listed and not finished is accepted, because a run may be killed in between. So is a batch that is
    planned and not listed.
    """
    archive_settings = existing_archive(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _1=["b"])
    write_batches(tmp_path, [10, 20, 30], done=1)
    assert len(folders(archive_settings).files()) == 2


# --- settings ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output": " "}, "output: nothing given"),
        ({"interval_s": 0}, "interval_s: 0 given"),
        ({"interval_s": float("nan")}, "interval_s: nan given"),
        ({"interval_s": True}, "interval_s: True given"),
        ({"interval_s": 1e12}, "interval_s: .* given; expected seconds above 0, at most a year"),
        ({"roll": "week"}, "roll: 'week' given; expected day or hour"),
        ({"time_field": "at:"}, "time_field: 'at:' given"),
        ({"schemas": {"views": StructType()}}, "schema: it has no fields"),
        ({"schemas": {"other": StructType()}}, "schema: given for 'other', which is not among the topics"),
        ({"start": "noon"}, "startingOffsets: 'noon'"),
        ({"pattern": "v.*"}, "one of subscribe, subscribePattern and assign"),
        ({"checkpoint": "archive/done", "output": "archive"}, "checkpoint: archive/done is among the records"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    """Invalid settings of an archive are refused before any folder is read."""
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, "views", **given)


@pytest.mark.parametrize("name", ["output", "checkpoint"])
def test_a_file_uri_with_a_host_is_refused(tmp_path: Path, name: str) -> None:
    """
    A file URI with a host, such as ``file://host/lake``, is refused. Otherwise, it would be read as a local folder.
    """
    with pytest.raises(ConfigError, match=rf"^{name}: 'file://lake/views' names a host; .* 'file:///folder'"):
        settings(tmp_path, "views", **{name: "file://lake/views"})
    with pytest.raises(ConfigError, match=rf"^{name}: 's3a://' names no folder"):
        settings(tmp_path, "views", **{name: "s3a://"})


# --- topics that are left out ---


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("done", [0, 1])
def test_a_planned_batch_reads_nothing_of_topics_that_are_left_out(tmp_path: Path, done: int, listed: bool) -> None:
    """
    A batch that is planned and not done is changed, and its checksum removed, which Spark would compare. A batch that
    is done, or whose files are listed, stays as it is.
    """
    archive = folders(existing_archive(tmp_path, "views", "orders"))
    write_batches(tmp_path, [40, 70], done=done)
    write_lists(tmp_path, **{f"_{number}": [] for number in range(2 if listed else done)})
    checkpoint = tmp_path / "archive" / "_checkpoint" / "offsets"
    texts = [(checkpoint / str(number)).read_text() for number in range(2)]
    held = archive.hold({"views", "never"})
    expected = 70 if listed else 40
    assert held == {"views": {"0": {"from": 5, "to": expected, "token": 1}}, "never": {}}
    assert (checkpoint / "0").read_text() == texts[0]
    first, changed = texts[1].splitlines()[:-1], (checkpoint / "1").read_text().splitlines()
    assert changed[:-1] == first
    assert json.loads(changed[-1]) == {"@query": "abc", "views": {"0": {"from": 5, "to": expected, "token": 1}}}
    assert (checkpoint / ".1.crc").exists() == listed


def test_the_first_batch_keeps_the_start_of_topics_that_are_left_out(tmp_path: Path) -> None:
    """What ``latest`` meant in the first run stays in the checkpoint. Before the first batch, there is no position."""
    archive = folders(existing_archive(tmp_path, "views"))
    assert archive.hold({"views"}) == {"views": {}}
    write_batches(tmp_path, [40], done=0)
    assert archive.hold(set()) == {}
    assert archive.hold({"views"}) == {"views": {"0": {"from": 5, "to": 5, "token": 1}}}


def test_a_planned_batch_is_not_changed_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other file systems than this machine's, another run may write the batch, unless the caller knows better."""
    archive = folders(existing_archive(tmp_path, "views"))
    alone = folders(settings(tmp_path, "views", is_only_run=True))
    write_batches(tmp_path, [40, 70], done=1)
    monkeypatch.setattr("kiel_groups.spark.archive_folders.local_path", lambda uri: None)
    assert archive.hold({"orders"}) == {"orders": {}}
    with pytest.raises(ConfigError, match=r"^checkpoint: batch 1 is planned and not done, .* set is_only_run, and the"):
        archive.hold({"views"})
    assert alone.hold({"views"}) == {"views": {"0": {"from": 5, "to": 40, "token": 1}}}
