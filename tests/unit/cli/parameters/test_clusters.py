"""The clusters of ``kiel-groups serve``: those of a file, and options that a file excludes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiel_groups.cli import app
from kiel_groups.cli.parameters.clusters import ServiceCluster, read_clusters
from kiel_groups.cli.parameters.options import SERVER_WAIT_S
from kiel_groups.errors import ConfigError
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER, ClusterAddress

pytestmark = pytest.mark.unit

TOKEN = "t0ken-of-all-workers"

FILE = """
[prod]
zookeeper = "zk1:2181,zk2:2181/kafka"
groups = ["billing", "search"]
worker-token-file = "workers.token"

["modern.eu-1"]
brokers = ["k1:9092", "k2"]
worker-zookeeper = "zk3"
"""


def write(folder: Path, text: str, *, mode: int = 0o600) -> Path:
    """Write a file of clusters and the token file that it may name, and return the path of the file of clusters."""
    path, token = folder / "clusters.toml", folder / "workers.token"
    path.write_text(text, encoding="utf-8")
    token.write_text(f"{TOKEN}\n")
    token.chmod(mode)
    return path


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o644, 1)])
def test_a_file_names_clusters(tmp_path: Path, mode: int, warnings: int) -> None:
    """Each table is a cluster. A token file that other users can read is reported."""
    warned: list[str] = []
    clusters = read_clusters(write(tmp_path, FILE, mode=mode), warned.append)
    assert clusters == {
        "prod": ServiceCluster(
            ClusterAddress(ZOOKEEPER, "zk1:2181,zk2:2181/kafka", SERVER_WAIT_S), ("billing", "search"), TOKEN
        ),
        "modern.eu-1": ServiceCluster(ClusterAddress(BROKERS, "k1:9092,k2", SERVER_WAIT_S, "zk3")),
    }
    assert len(warned) == warnings


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", " has no cluster; expected a table for each, such as [prod]"),
        ("[a", " is not TOML: "),
        ("[a]\nzookeeper = 'z'\n[a]\n", " is not TOML: "),
        ("[a]\nzookeeper = 'y'\nzookeeper = 'z'\n", " is not TOML: "),
        ("zookeeper = 'z:2181'", ": zookeeper: 'z:2181' given; expected a table, such as [prod]"),
        ("['a/b']\nzookeeper = 'z'", ": [a/b]: 'a/b' is not a legal name; "),
        ("['..']\nzookeeper = 'z'", ": [..]: '..' is not a legal name; "),
        ("[a]", ": [a]: no address given; expected either 'zookeeper' or 'brokers'"),
        ("[a]\nzookeeper = 'z'\nbrokers = 'k'", ": [a]: 2 addresses given; expected either 'zookeeper' or 'brokers'"),
        ("[a]\nzookeper = 'z'", ": [a]: there is no 'zookeper'; did you mean 'zookeeper'?"),
        ("[a]\nzookeeper = 'z'\nworker_token_file = 'f'", ": [a]: there is no 'worker_token_file'; did you mean 'wor"),
        ("[a]\nx = 'z'", ": [a]: there is no 'x'; known: zookeeper, brokers, groups, worker-zookeeper, worker-token"),
        ("[a]\nzookeeper = 2181", ": [a] zookeeper: 2181 given; expected a string or a list of strings"),
        ("[a]\nzookeeper = 'z:x'", ": [a] zookeeper: 'z:x' is not an address; expected 'host' or 'host:port'"),
        ("[a]\nbrokers = ''", ": [a] brokers: no address given; expected at least one 'host' or 'host:port'"),
        ("[a]\nzookeeper = 'z'\n[b]\nzookeeper = 'z'", ": [b]: z is the address of [a], too; expected another"),
        ("[a]\nzookeeper = 'z'\ngroups = 'g'", ": [a] groups: 'g' given; expected a list of names of groups to lead"),
        ("[a]\nzookeeper = 'z'\ngroups = [1]", ": [a] groups: 1 is not a legal name; "),
        ("[a]\nzookeeper = 'z'\ngroups = ['g', 'g']", ": [a] groups: 'g' is listed twice; expected each group once"),
        ("[a]\nbrokers = 'k'\ngroups = ['g']", ": [a] groups: brokers coordinate the groups of this cluster, so a"),
        (
            "[a]\nzookeeper = 'z'\nworker-zookeeper = 'z'",
            ": [a] worker-zookeeper: goes with brokers; workers are found ",
        ),
        ("[a]\nbrokers = 'k'\nworker-zookeeper = ''", ": [a] worker-zookeeper: no address given; expected at least "),
        ("[a]\nbrokers = 'k'\nworker-zookeeper = 1", ": [a] worker-zookeeper: 1 given; expected a string or a list"),
        ("[a]\nzookeeper = 'z'\nworker-token-file = 1", ": [a] worker-token-file: 1 given; expected the path of a fi"),
        ("[a]\nzookeeper = 'z'\nworker-token-file = 'no'", ": [a] worker-token-file: {folder}/no cannot be read: No "),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, error: str) -> None:
    """The error has one line: the file, the cluster, the key, and what was expected."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_clusters(path, pytest.fail)
    assert str(raised.value).startswith(f"--clusters: {path}{error.format(folder=tmp_path)}")
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error has the path and the reason."""
    with pytest.raises(ConfigError, match=r"--clusters: .*/none cannot be read: No such file or directory"):
        read_clusters(tmp_path / "none", pytest.fail)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--coordination", "brokers"),
        ("--zookeeper", "z:2181"),
        ("--brokers", "k:9092"),
        ("--cluster-name", "a"),
        ("--group", "g"),
        ("--worker-zookeeper", "z:2181"),
        ("--worker-token-file", "workers.token"),
    ],
)
def test_a_file_excludes_the_options_of_a_single_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    """The error of the command line names the option."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert app.run(["serve", "--clusters", str(write(tmp_path, FILE)), option, value]) == 2
    assert f"'{option}' does not go with '--clusters': the file has a key for it" in capsys.readouterr().err
