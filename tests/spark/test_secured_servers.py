"""
Members, workers, commands, a mirror, the service and Spark on secured servers, each with no more than the files for
clients: three ZooKeepers with digest, with SASL, and with TLS and client certificates, and Kafka 3.9.1 with SASL_SSL.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kiel_groups.config import SECURITY_VARIABLE
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.security import USER, write_secret
from kiel_groups.spark import ArchiveSettings, archive
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.rest_requests import JSON
from tests.helpers.rest_requests import ask as ask_service
from tests.helpers.secret_scan import SecretScan
from tests.helpers.servers import plays_all_variants
from tests.helpers.waiting import eventually_blocking
from tests.helpers.worker_groups import ask, until_state

# The servers are those of this module, and the session that of all tests of Spark.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-session")]

DIGEST_PASSWORD, KEY_PASSWORD, TOKEN = "digest-word/55+12", "key-word/33+07", "t0ken-of-the-service"
RECORDS, PARTITIONS = 100, 4


class Servers:
    """Secured clusters of Kafka 0.8.2.2, on three ZooKeepers, and of Kafka 3.9.1, and a scan for all their secrets."""

    def __init__(self, early: Cluster, late: Cluster) -> None:
        self.early, self.late = early, late
        self.scan = SecretScan(
            password_in_zookeeper=early.security.password,
            password_at_brokers=late.security.password,
            digest_password=DIGEST_PASSWORD,
            key_password=KEY_PASSWORD,
            token=TOKEN,
        )
        with_password = ["openssl", "pkey", "-in", early.security.folder / "client.pem", "-aes256", "-passout"]
        made = subprocess.run([*with_password, f"pass:{KEY_PASSWORD}"], check=True, capture_output=True, text=True)
        write_secret(early.security.folder / "key.pem", made.stdout)

    def look_into_servers(self) -> None:
        """Search the files of all servers: their logs, all znodes and all records, also those that are deleted."""
        for cluster in (self.early, self.late):
            for server in cluster.servers:
                with_users = [server.folder / name for name in ("server.properties", "scram")]
                assert self.scan.look_into(server.folder, besides=with_users)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        quick = {"group.min.session.timeout.ms": 1_000}
        early = pool.submit(stack.enter_context, Cluster(zookeepers=3, secure=True))
        late = pool.submit(stack.enter_context, Cluster(kafka="3.9.1", secure=True, broker_overrides=quick))
        yield Servers(early.result(), late.result())


@dataclass(frozen=True)
class Kind:
    """How clients identify themselves: the variables of the environment for them, and for workers."""

    variables: dict[str, str]
    of_workers: dict[str, str]

    @property
    def brokers(self) -> str:
        return self.variables["KIEL_GROUPS_BROKERS"]

    @property
    def zookeeper(self) -> str | None:
        return self.variables.get("KIEL_GROUPS_ZOOKEEPER")

    @property
    def file(self) -> Path:
        return Path(self.variables[SECURITY_VARIABLE])


#: The workers of the last one connect to ZooKeeper by TLS.
KINDS = ["digest", "sasl", "tls", "sasl_ssl"] if plays_all_variants() else ["sasl_ssl"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Kind:
    """Write the file of one kind, and return it with the addresses of the servers."""
    early, late = servers.early, servers.late
    folder = early.security.folder
    tables = {
        "digest": ["[zookeeper]", 'digest-user = "u"', f'digest-password = "{DIGEST_PASSWORD}"'],
        "sasl": ["[zookeeper]", f'sasl-user = "{USER}"', f'sasl-password = "{early.security.password}"'],
        "tls": [
            "[zookeeper]",
            f'tls-ca = "{folder}/ca.pem"',
            f'tls-certificate = "{folder}/client.pem"',
            f'tls-key = "{folder}/key.pem"',
            f'tls-key-password = "{KEY_PASSWORD}"',
        ],
        "sasl_ssl": [
            late.security.file.read_text(encoding="utf-8").replace("ca.pem", f"{late.security.folder}/ca.pem")
        ],
    }
    of_zookeeper = "tls" if request.param == "sasl_ssl" else request.param
    write_secret(
        file := tmp_path / f"{request.param}.toml",
        "\n".join([*tables[request.param], *(['acl = "creator-all"'] if of_zookeeper == request.param else [])]),
    )
    hosts = early.tls_hosts if of_zookeeper == "tls" else early.zk_hosts
    if request.param != "sasl_ssl":
        variables = {
            "KIEL_GROUPS_BROKERS": early.brokers[0],
            "KIEL_GROUPS_ZOOKEEPER": hosts,
            SECURITY_VARIABLE: str(file),
        }
        return Kind(variables, variables)
    # Workers need a ZooKeeper. They use the other mechanism.
    write_secret(
        other := tmp_path / "workers.toml",
        "\n".join([*tables["tls"], 'acl = "creator-all"', tables["sasl_ssl"][0].replace("SCRAM-SHA-256", "PLAIN")]),
    )
    variables = {"KIEL_GROUPS_BROKERS": late.brokers[0], "KIEL_GROUPS_COORDINATION": "brokers"}
    return Kind(
        variables | {SECURITY_VARIABLE: str(file)},
        variables | {SECURITY_VARIABLE: str(other), "KIEL_GROUPS_ZOOKEEPER": hosts},
    )


class Run:
    """The processes of one run, with the variables of its kind, and what they print."""

    def __init__(self, scan: SecretScan, patched: pytest.MonkeyPatch, folder: Path) -> None:
        self._scan, self._patched, self._folder = scan, patched, folder
        self._stack = ExitStack()
        self._running: list[Running] = []

    def __enter__(self) -> Run:
        self._stack.enter_context(self._scan.watching_processes())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def use(self, variables: dict[str, str]) -> None:
        """Set these variables of the environment for the next processes, and no others of their kind."""
        for name in (*(f"KIEL_GROUPS_{each}" for each in ("BROKERS", "ZOOKEEPER", "COORDINATION")), SECURITY_VARIABLE):
            self._patched.delenv(name, raising=False)
            if name in variables:
                self._patched.setenv(name, variables[name])

    def start(self, *words: str) -> Running:
        """Start a command of kiel-groups."""
        process = self._stack.enter_context(Running(["-m", "kiel_groups", *words], self._folder))
        self._running.append(process)
        return process

    def done(self, *words: str) -> str:
        """Run a command in this process, and return what it prints. It must succeed."""
        found = kiel_groups_here(*words)
        assert found.returncode == 0, (words, found)
        self._scan.look_at(f"the answer of {words}", found.stdout + found.stderr)
        return found.stdout

    def produce(self, topic: str, numbers: range) -> None:
        """Produce some numbers."""
        (file := self._folder / "numbers").write_text("".join(f"{number}\n" for number in numbers))
        self.done("produce", topic, str(file), "-v")

    def url_in(self, process: Running, pattern: str) -> str:
        """Wait until a process logs its URL, and return it."""
        found = eventually_blocking(lambda: re.search(pattern, "\n".join(process.errors)), "it logs its URL", 60)
        return found[1]

    def end(self) -> None:
        """Stop all processes with Ctrl-C, and search what they have printed."""
        for process in self._running:
            if process.process.poll() is None:
                process.end(signal.SIGINT)
            self._scan.look_at(f"the output of {process.process.args}", "\n".join(process.lines + process.errors))


@pytest.fixture
def run(kind: Kind, servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    with Run(servers.scan, monkeypatch, tmp_path) as made:
        made.use(kind.variables)
        yield made


def test_a_mirror_to_a_secured_target(
    servers: Servers, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It needs the file for the target's clients, and shows none of its secrets. The next test searches the servers."""
    early, late, scan = servers.early, servers.late, servers.scan
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": late.security.folder / "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": late.security.password,
    }
    write_secret(file := tmp_path / "target", "\n".join(f"{name}={text}" for name, text in properties.items()))
    user = f'[zookeeper]\nsasl-user = "{USER}"\nsasl-password = "{early.security.password}"\nacl = "creator-all"'
    write_secret(security := tmp_path / "sasl.toml", user)
    topic, hosts, brokers = unique("topic"), early.zk_hosts, early.brokers[0]
    place = ("--from", hosts, "--to", late.brokers[0], "--name", unique("mirror"), "--target-properties", str(file))
    with Run(scan, monkeypatch, tmp_path) as run:
        run.use(
            {"KIEL_GROUPS_BROKERS": brokers, "KIEL_GROUPS_ZOOKEEPER": hosts, SECURITY_VARIABLE: str(security)},
        )
        run.done("topics", "create", topic, "--partitions", str(PARTITIONS))
        run.produce(topic, range(RECORDS))
        words = ("mirror", "start", *place, "--topics", topic, "--topic-format", "mirrored.${topic}")
        mirror = run.start(*words, "--exactly-once", "--until-caught-up", "-v")
        assert mirror.wait(60) == 0, mirror.errors
        assert "lag 0\n" in run.done("mirror", "status", *place)
        assert f"complete; {RECORDS} of {RECORDS} records" in run.done("mirror", "verify", *place)
        run.end()
    assert scan.saw_command("mirror", "--target-properties")
    assert scan.found == []


def test_all_parts_run_and_show_no_secret(
    kind: Kind,
    run: Run,
    servers: Servers,
    spark: SparkSession,
    spark_folder: Path,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """
    Two processes of a group print all records, although one is killed. A worker's sink copies them to a file, the
    service shows the group, commands read and change it, and queries in Spark copy and archive the topic. Command
    lines, output, answers, logs, znodes, archives, and Spark's event log and work folders have none of the secrets,
    neither as they are nor in base64.
    """
    topic, copy, group, workers = unique("topic"), unique("copy"), unique("group"), unique("workers")
    for name in (topic, copy):
        run.done("topics", "create", name, "--partitions", str(PARTITIONS))
    members = [
        run.start("consume", topic, "--group", group, "--from", "earliest", "--session-timeout-ms", "2000", "-v")
        for _ in range(2)
    ]
    count = consume_although_one_is_killed(run, members, topic)

    await_state_in_service(servers.scan, serve(run, tmp_path), group)
    run.use(kind.of_workers)
    worker = run.start("workers", "run", "--group", workers, "--port", "0", "-v")
    url = run.url_in(worker, r"REST interface of this worker is at (\S+)")
    copied = copy_by_worker(servers.scan, url, unique("sink"), topic, tmp_path / "copy.txt", count)
    assert sorted(map(int, copied)) == list(range(count))
    assert json.loads(run.done("workers", "describe", workers, "--json", "--check"))
    run.use(kind.variables)
    run.end()

    operate(run, group, topic, tmp_path)
    write_secret(spark_folder / "security.toml", kind.file.read_text(encoding="utf-8"))
    copy_by_spark(spark, kind, group, topic, copy)
    lake = ArchiveSettings(topics=(topic,), output=str(tmp_path / "lake"), brokers=kind.brokers)
    assert archive(spark, lake).records == count
    write_secret(spark_folder / "security.toml", "[zookeeper]\n")  # The session's other tests have open servers.
    if kind.zookeeper is None:
        assert count_by_options(spark, servers.late, topic) == count
    again = run.start("consume", copy, "--from", "earliest", "--max", str(count), "--timeout", "30")
    assert again.wait(60) == 0
    assert sorted(map(int, again.lines)) == list(range(count))
    run.end()

    scan = servers.scan
    assert scan.saw_command("consume", "--group", group)
    assert scan.look_into(tmp_path, besides=[*tmp_path.glob("*.toml"), tmp_path / "token"])
    assert scan.look_into(tmp_path / "lake")
    assert scan.look_into(spark_folder, besides=[spark_folder / "security.toml"])
    assert any((spark_folder / "work").iterdir())
    servers.look_into_servers()
    assert scan.found == []


def consume_although_one_is_killed(run: Run, members: list[Running], topic: str) -> int:
    """
    Produce until both members print records, kill one of them, and produce more.

    Return the number of records when the members have printed all of them.
    """
    sent = 0
    while not all(member.lines for member in members):
        assert sent < 100 * RECORDS, [member.errors for member in members]
        run.produce(topic, range(sent, sent + RECORDS))
        sent += RECORDS
    members[0].process.kill()
    run.produce(topic, range(sent, sent + RECORDS))
    wanted = {str(number) for number in range(sent + RECORDS)}
    eventually_blocking(
        lambda: {line for member in members for line in member.lines} == wanted, "all records are printed", 60
    )
    return len(wanted)


def serve(run: Run, folder: Path) -> str:
    """Start the service, and return its URL."""
    write_secret(folder / "token", TOKEN)
    service = run.start("serve", "--port", "0", "--interval", "1", "--token-file", str(folder / "token"), "-v")
    return run.url_in(service, r"serves default at (\S+)")


def await_state_in_service(scan: SecretScan, url: str, group: str) -> None:
    """Wait until the service shows one member without lag, then ask for its groups and offsets."""
    headers = {**JSON, "Authorization": f"Bearer {TOKEN}"}
    place = f"{url.rstrip('/')}/v1/clusters/default/groups"

    def asked(path: str, method: str = "GET", body: object = None) -> Any:
        found = asyncio.run(ask_service(f"{place}{path}", method, body, headers))
        scan.look_at(f"the answer of the service to {path}", json.dumps(found.document))
        return found.document

    eventually_blocking(
        lambda: (found := asked(f"/{group}")).get("lag") == 0 and len(found["members"]) == 1, "one member is left", 60
    )
    assert [each["group"] for each in asked("")["groups"]].count(group) == 1
    assert asked(f"/{group}/offsets")


def copy_by_worker(scan: SecretScan, url: str, name: str, topic: str, file: Path, count: int) -> list[str]:
    """Create a sink that writes a topic to a file, and return the lines of the file when it has all records."""
    config = {"connector.class": "FileStreamSink", "file": str(file), "topics": topic}

    async def create() -> object:
        await ask(url, "POST", "/connectors", {"name": name, "config": config})
        return [await until_state(url, name, "RUNNING", "RUNNING"), await ask(url, "GET", f"/connectors/{name}")]

    scan.look_at("the answers of a worker", json.dumps(asyncio.run(create())))

    def lines() -> list[str]:
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    eventually_blocking(lambda: len(lines()) >= count, "the file has all records", 60)
    return lines()


def operate(run: Run, group: str, topic: str, folder: Path) -> None:
    """List and describe the group and its topic, look for problems, and set the group back to the beginning."""
    assert group in run.done("groups", "list")
    assert topic in run.done("describe", group)
    assert topic in run.done("topics", "describe", topic)
    run.done("doctor", group)
    former = str(folder / "former.json")
    run.done("offsets", "reset", group, "--topic", topic, "--to-earliest", "--yes", "--restore-file", former)


def copy_by_spark(spark: SparkSession, kind: Kind, group: str, topic: str, copy: str) -> None:
    """Copy a topic by a query, which begins at the group's offsets if they are in ZooKeeper."""
    brokers = {"kafka.bootstrap.servers": kind.brokers}
    options = brokers | {"subscribe": topic}
    if kind.zookeeper is not None:
        options |= {"startingOffsets": "group", "kafka.group.id": group, "kiel.zookeeper.connect": kind.zookeeper}
    # A shuffle writes files to the work folders of executors.
    table = spark.read.format("kiel").options(**options).load().select("key", "value").repartition(2)
    table.write.format("kiel").mode("append").options(**brokers, topic=copy).save()


def count_by_options(spark: SparkSession, cluster: Cluster, topic: str) -> int:
    """Count the records of a topic with the options of Spark's own source, which have the password, and no file."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    options = {
        "kafka.bootstrap.servers": cluster.brokers[0],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(cluster.security.folder / "ca.pem"),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": f'{login} username="{USER}" password="{cluster.security.password}";',
    }
    return spark.read.format("kiel").options(**options, subscribe=topic).load().count()
