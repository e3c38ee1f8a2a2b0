"""The folders of an archive: which query owns them, how far it is done, which files count, and what a crash leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import ArchiveSettings
from kiel_groups.spark.jobs.archive_folders import ArchiveFolders
from kiel_groups.spark.jobs.folders import FolderError, LocalFolder, local_path, located

pytestmark = pytest.mark.unit

BROKERS = ["kafka-1:9092", "kafka-2:9092"]


def settings(folder: Path, *topics: str, **given: Any) -> ArchiveSettings:
    output = given.pop("output", str(folder / "archive"))
    return ArchiveSettings(topics=topics, output=output, brokers=BROKERS[0], **given)


def home(wanted: ArchiveSettings) -> ArchiveFolders:
    return ArchiveFolders(wanted, None)


def begun(folder: Path, *topics: str, **given: Any) -> ArchiveSettings:
    """An archive that has had a run."""
    wanted = settings(folder, *topics, **given)
    home(wanted).claim(BROKERS)
    return wanted


def write_lists(folder: Path, **lists: list[str]) -> None:
    """What the sink writes: names of lists, with an underscore in front, and the files in each."""
    metadata = folder / "archive" / "_spark_metadata"
    metadata.mkdir(parents=True)
    for name, files in lists.items():
        entries = [
            json.dumps({"path": f"file://{folder}/archive/{each}", "size": 7, "action": "add"}) for each in files
        ]
        (metadata / name.lstrip("_").replace("_", ".")).write_text("\n".join(["v1", *entries]))


def write_batches(folder: Path, ends: list[int], done: int) -> None:
    """What Spark writes down of batches that are planned and done: one partition, up to these offsets."""
    checkpoint = folder / "archive" / "_checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    for number, end in enumerate(ends):
        line = json.dumps({"@query": "abc", "views": {"0": {"from": 5, "to": end, "token": 1}}})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")
        (checkpoint / "offsets" / f".{number}.crc").touch()
    for number in range(done):
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")


# ---------------------------------------------------------------------- places


@pytest.mark.parametrize("name", ["output", "checkpoint"])
def test_a_file_is_no_place_for_an_archive(tmp_path: Path, name: str) -> None:
    """Nor is what would have to be a folder in it."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "in" / "it"):
        with pytest.raises(ConfigError, match=f"^{name}: {tmp_path}/file is a file; name a folder that can be written"):
            home(settings(tmp_path, "views", **{name: str(place)}))


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That in which it would have to be made; who tests may be root, who may write everywhere."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    with pytest.raises(ConfigError, match=f"^output: this user may not write into {tmp_path}; name a folder"):
        home(settings(tmp_path, "views"))


def test_a_folder_in_which_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    """Root may write into /proc, as far as permissions say. The question leaves nothing behind."""
    with pytest.raises(ConfigError, match=r"^output: (nothing can be made in|this user may not write into) /proc"):
        home(settings(tmp_path, "views", output="/proc/lake"))
    home(settings(tmp_path, "views"))
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
def test_a_place_is_the_same_for_every_process(given: str, uri: str) -> None:
    """However it is written."""
    assert located(given) == uri


def test_a_relative_path_is_one_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Below the folder where one stands."""
    monkeypatch.chdir(tmp_path)
    assert local_path(located("views")) == tmp_path / "views"
    assert local_path("hdfs://namenode/views") is None


# ---------------------------------------------------------------------- whose it is


class Disk:
    """Notes what reaches the disk, and in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.steps: list[tuple[str, str]] = []
        self._folder = folder
        fsync, replace = os.fsync, os.replace

        def noted_fsync(descriptor: int) -> None:
            self._note("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        def noted_replace(source: str, target: str) -> None:
            self._note("rename", str(target))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "replace", noted_replace)

    def _note(self, step: str, path: str) -> None:
        self.steps.append((step, os.path.relpath(path, self._folder)))


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash of the machine, the file exists with its whole content and every folder above it, or not at all."""
    disk = Disk(monkeypatch, tmp_path)
    LocalFolder(tmp_path / "archive").write("a/file", "text")
    assert disk.steps == [
        ("fsync", "."),
        ("fsync", "archive"),
        ("fsync", "archive/a/.file.draft"),
        ("rename", "archive/a/file"),
        ("fsync", "archive/a"),
    ]
    disk.steps.clear()
    LocalFolder(tmp_path / "archive").write("a/file", "another")
    assert [step for step, _ in disk.steps] == ["fsync", "rename", "fsync"]


def test_a_leftover_is_on_the_disk_in_its_new_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, then the rename, then the folder that has the name and the one that had it."""
    begun_home = home(begun(tmp_path, "t"))
    folder = tmp_path / "archive" / "topic=t" / "date=2026-01-01"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"rows")
    disk = Disk(monkeypatch, tmp_path / "archive")
    assert begun_home.sweep() == 1
    path = "topic=t/date=2026-01-01"
    assert disk.steps[-4:] == [
        ("fsync", f"{path}/part-0.parquet"),
        ("rename", f"_leftovers/{path}/part-0.parquet"),
        ("fsync", f"_leftovers/{path}"),
        ("fsync", path),
    ]
    assert [step for step in disk.steps[:-4] if step[0] == "rename"] == []


def test_nothing_is_written_before_the_claim(tmp_path: Path) -> None:
    """To look is not to touch."""
    assert home(settings(tmp_path, "views")).is_new
    assert list(tmp_path.iterdir()) == []
    assert not home(begun(tmp_path, "views")).is_new


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Names what is in it; an empty one will do."""
    (tmp_path / "archive").mkdir()
    assert home(settings(tmp_path, "views")).is_new
    for number in range(4):
        (tmp_path / "archive" / f"holiday-{number}.jpg").touch()
    with pytest.raises(ConfigError, match=r"^output: .*archive is no archive.*holiday-0.jpg, .*-2.jpg, ….*new folder"):
        home(settings(tmp_path, "views"))


def test_what_a_killed_claim_left_is_no_obstacle(tmp_path: Path) -> None:
    """A draft of its first file; the next claim writes over it."""

    def end(*_: object) -> None:
        raise OSError("no space left")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", end)
        with pytest.raises(FolderError, match="cannot be written: no space left"):
            begun(tmp_path, "views")
    assert list((tmp_path / "archive" / "_checkpoint").iterdir()) != []
    assert home(settings(tmp_path, "views")).is_new
    assert not home(begun(tmp_path, "views")).is_new
    assert [path.name for path in (tmp_path / "archive" / "_checkpoint").iterdir()] == ["archive.json"]


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    """Such as that of another query."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").touch()
    with pytest.raises(ConfigError, match=r"^checkpoint: .*checkpoint is no archive.*metadata"):
        home(settings(tmp_path, "views", checkpoint=str(tmp_path / "checkpoint")))


def test_each_folder_has_one_partner(tmp_path: Path) -> None:
    """With another checkpoint Spark would take its first batches for done; with another output they would be gone."""
    begun(tmp_path, "views", checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match=r"^output: .*other given; .* is that of the archive at .*/archive\. Name"):
        home(settings(tmp_path, "views", output=str(tmp_path / "other"), checkpoint=str(tmp_path / "checkpoint")))
    with pytest.raises(ConfigError, match=r"^checkpoint: .*new given; the progress .* is in .*/checkpoint\. Name"):
        home(settings(tmp_path, "views", checkpoint=str(tmp_path / "new")))
    (tmp_path / "checkpoint" / "archive.json").unlink()
    with pytest.raises(ConfigError, match=r"^checkpoint: .* was emptied; .*Restore it"):
        home(settings(tmp_path, "views", checkpoint=str(tmp_path / "checkpoint")))


def test_topics_may_be_added_and_not_left_out(tmp_path: Path) -> None:
    """The source would take a topic that is left out for a loss."""
    begun(tmp_path, "views", "orders")
    home(settings(tmp_path, "orders", "views", "payments"))
    with pytest.raises(ConfigError, match=r"^topics: orders missing.*name it too"):
        home(settings(tmp_path, "views"))
    with pytest.raises(ConfigError, match=r"^topics: this archive was begun with names"):
        home(settings(tmp_path, pattern="views|orders"))


def test_another_cluster_is_refused(tmp_path: Path) -> None:
    """One broker that was there before is enough; says where to write down that a cluster has moved."""
    wanted = begun(tmp_path, "views")
    home(wanted).check_brokers(["kafka-2:9092", "kafka-3:9092"])
    with pytest.raises(ConfigError, match=r"^brokers: .*kafka-1:9092.*kafka-9:9092 are others.*archive.json"):
        home(wanted).check_brokers(["kafka-9:9092"])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"output": "x"}'])
def test_a_description_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    """Somebody has changed it."""
    wanted = begun(tmp_path, "views")
    (tmp_path / "archive" / "_archive.json").write_text(text)
    with pytest.raises(ConfigError, match=r"_archive\.json is not what an archive has written"):
        home(wanted)


# ---------------------------------------------------------------------- what it has


def test_a_batch_counts_when_it_is_done(tmp_path: Path) -> None:
    """One that is only planned is still to be read."""
    wanted = begun(tmp_path, "views")
    partition = TopicPartition("views", 0)
    assert home(wanted).positions() is None
    write_batches(tmp_path, [10, 20, 30], done=2)
    write_lists(tmp_path, _0=["a"], _1=["b"])
    reached = home(wanted).positions()
    assert reached is not None
    assert (reached.offsets(), reached.query) == ({partition: 20}, "abc")


def test_a_first_batch_that_was_not_done_leaves_the_beginning(tmp_path: Path) -> None:
    """Which is where the source has said that it starts."""
    wanted = begun(tmp_path, "views")
    write_batches(tmp_path, [10], done=0)
    reached = home(wanted).positions()
    assert reached is not None
    assert reached.offsets() == {TopicPartition("views", 0): 5}


def test_a_batch_that_is_missing_is_told(tmp_path: Path) -> None:
    """Better than to guess."""
    wanted = begun(tmp_path, "views")
    write_batches(tmp_path, [10, 20, 30], done=2)
    write_lists(tmp_path, _0=["a"], _1=["b"])
    (tmp_path / "archive" / "_checkpoint" / "offsets" / "1").unlink()
    with pytest.raises(ProtocolError, match="offsets/1 is missing"):
        home(wanted).positions()


def test_files_count_that_are_listed(tmp_path: Path) -> None:
    """Lists are put together now and then; what is older than that is in it."""
    wanted = begun(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _9_compact=["a", "b"], _10=["c"], _11=["d"])
    write_batches(tmp_path, [10] * 12, done=12)
    found = home(wanted).files()
    assert {path.rpartition("/")[2] for path in found} == {"a", "b", "c", "d"}
    assert set(found.values()) == {7}


def test_leftovers_are_put_aside(tmp_path: Path) -> None:
    """Without their checksums; what counts stays, and so does what Spark has not written."""
    wanted = begun(tmp_path, "views")
    day = tmp_path / "archive" / "topic=views" / "date=2026-11-21"
    day.mkdir(parents=True)
    for name in ("part-0-x.snappy.parquet", "part-1-y.snappy.parquet", "notes.txt"):
        (day / name).touch()
        (day / f".{name}.crc").touch()
    write_lists(tmp_path, _0=["topic=views/date=2026-11-21/part-0-x.snappy.parquet"])
    write_batches(tmp_path, [10], done=1)
    assert home(wanted).sweep() == 1
    aside = tmp_path / "archive" / "_leftovers" / "topic=views" / "date=2026-11-21"
    assert [path.name for path in aside.iterdir()] == ["part-1-y.snappy.parquet"]
    assert sorted(path.name for path in day.iterdir()) == [
        ".notes.txt.crc",
        ".part-0-x.snappy.parquet.crc",
        "notes.txt",
        "part-0-x.snappy.parquet",
    ]


@pytest.mark.parametrize("lost", ["all", "the list of the last batch", "what the list of the last batch says"])
def test_lists_that_were_lost_are_told(tmp_path: Path, lost: str) -> None:
    """And nothing is taken for a leftover."""
    wanted = begun(tmp_path, "views")
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
        home(wanted)


def test_a_hole_in_the_lists_is_told(tmp_path: Path) -> None:
    """Also where the checkpoint does not remember that batch any more."""
    wanted = begun(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _2=["c"])
    write_batches(tmp_path, [10, 20, 30], done=0)
    with pytest.raises(ConfigError, match="batch 1 has made"):
        home(wanted)


@pytest.mark.parametrize("left", [0, 1])
def test_a_checkpoint_that_lost_batches_is_told(tmp_path: Path, left: int) -> None:
    """Spark would take what it plans next for written."""
    wanted = begun(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _1=["b"])
    write_batches(tmp_path, [10, 20][:left], done=left)
    with pytest.raises(ConfigError, match="does not know batch 1, which the output has"):
        home(wanted)


def test_a_batch_that_is_listed_and_not_done_is_no_loss(tmp_path: Path) -> None:
    """Between the two a run may be killed; nor is one that is planned and not listed."""
    wanted = begun(tmp_path, "views")
    write_lists(tmp_path, _0=["a"], _1=["b"])
    write_batches(tmp_path, [10, 20, 30], done=1)
    assert len(home(wanted).files()) == 2


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output": " "}, "output: nothing given"),
        ({"interval_s": 0}, "interval_s: 0 given"),
        ({"start": "noon"}, "startingOffsets: 'noon'"),
        ({"pattern": "v.*"}, "one of subscribe, subscribePattern and assign"),
        ({"checkpoint": "archive/done", "output": "archive"}, "checkpoint: archive/done is among the records"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    """Before anything is looked at."""
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, "views", **given)


@pytest.mark.parametrize("name", ["output", "checkpoint"])
def test_a_folder_of_another_machine_is_refused(tmp_path: Path, name: str) -> None:
    """``file://host/lake`` would be a folder of that name here."""
    with pytest.raises(ConfigError, match=rf"^{name}: 'file://lake/views' names a host; .* 'file:///folder'"):
        settings(tmp_path, "views", **{name: "file://lake/views"})
