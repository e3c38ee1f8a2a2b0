"""``kiel-groups offsets``: mistakes on the command line are refused before any server is asked."""

from pathlib import Path

import pytest

from tests.helpers.commands import kiel_groups_here

#: Nothing listens there.
AT = ("--zookeeper", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("reset", "g", "--to-latest"), "give either --topic, once or several times, or --all-topics"),
        (("reset", "g", "--to-latest", "--topic", "t", "--all-topics"), "give either --topic"),
        (("reset", "g", "--all-topics"), "give one of the options"),
        (("reset", "g", "--all-topics", "--to-latest", "--to-earliest"), "give one of the options"),
        (("reset", "g", "--all-topics", "--to-latest", "--from-file", "f"), "give one of the options"),
        (("reset", "g", "--topic", "t:x", "--to-latest"), "--topic: 't:x' given; expected TOPIC or TOPIC:0,1,2"),
        (("reset", "g", "--all-topics", "--to-datetime", "noon"), "--to-datetime: 'noon' given; expected"),
        (("reset", "g", "--all-topics", "--by-duration", "5"), "--by-duration: '5' given; expected"),
        (("reset", "g", "--all-topics", "--to-offset", "-1"), "Invalid value for '--to-offset'"),
        (("reset", "g", "--from-file", "missing"), "missing cannot be read: No such file"),
        (("import", "g", "missing"), "missing cannot be read: No such file"),
        (("delete", "g"), "give either --topic"),
        (("show", "g", "--topic", "a b"), "--topic: 'a b'"),
        (("export", "g", "--format", "csv"), "Invalid value for '--format'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_refused(
    words: tuple[str, ...],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = kiel_groups_here("offsets", *words, *AT)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_store_is_that_of_groups_in_zookeeper() -> None:
    at = ("--coordination", "brokers", "--brokers", "127.0.0.1:1")
    done = kiel_groups_here("offsets", "show", "g", "--store", "zookeeper", *at)
    assert done.returncode == 2
    assert "'--store' does not go with '--coordination brokers'" in done.stderr
