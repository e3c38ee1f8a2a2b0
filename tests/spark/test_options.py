"""The options of the data source: their case does not matter, and an unsupported option is refused with a reason."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kiel_groups.config import SECURITY_VARIABLE, BrokerConfig
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.options import OPTION_NAMES, ReadOptions, WriteOptions

pytestmark = pytest.mark.spark

LEAST = {"kafka.bootstrap.servers": "one:9092,two", "subscribe": "clicks"}


def parse(streaming: bool = True, **options: str) -> ReadOptions:
    """Parse options. An underscore in the name of an argument stands for a dot."""
    return ReadOptions.parse(
        {**LEAST, **{name.replace("_", "."): text for name, text in options.items()}}, streaming=streaming
    )


def test_a_new_stream_starts_at_latest_and_a_batch_at_earliest() -> None:
    """The defaults are those of Spark's source for Kafka."""
    assert (parse(streaming=True).starting, parse(streaming=False).starting) == ("latest", "earliest")
    assert [str(broker) for broker in parse().brokers] == ["one:9092", "two:9092"]
    assert parse().fail_on_data_loss


def test_the_case_of_names_does_not_matter() -> None:
    """Spark passes names in lower case. Programs that construct readers do not."""
    given = {"KAFKA.Bootstrap.SERVERS": "one", "subscribepattern": "c.*", "FAILONDATALOSS": "False"}
    read = ReadOptions.parse(given, streaming=True)
    assert read.topic_pattern is not None
    assert not read.fail_on_data_loss


def test_offsets_by_partition_are_json() -> None:
    """An offset of -2 means the earliest offset, and -1 the latest."""
    assert parse(startingOffsets='{"clicks": {"0": 23, "1": -2, "2": -1}}').starting == {
        TopicPartition("clicks", 0): 23,
        TopicPartition("clicks", 1): -2,
        TopicPartition("clicks", 2): -1,
    }


def test_blanks_around_a_pattern_are_ignored() -> None:
    """Spark's source for Kafka ignores them as well: no topic has blanks in its name."""
    given = {"kafka.bootstrap.servers": "one", "subscribePattern": " c.* "}
    read = ReadOptions.parse(given, streaming=True)
    assert read.topic_pattern is not None
    assert read.topic_pattern.fullmatch("clicks")


def test_the_same_options_work_for_reads_and_writes() -> None:
    """Batches and writes accept the address of ZooKeeper without using it, and refuse an invalid address."""
    where = {"kafka.bootstrap.servers": "one", "kiel.zookeeper.connect": "z:2181/kafka"}
    ReadOptions.parse({**where, "subscribe": "clicks"}, streaming=False)
    WriteOptions.parse({**where, "topic": "clicks"})
    with pytest.raises(ConfigError, match=r"kiel\.zookeeper\.connect: 'z:0' is not an address"):
        WriteOptions.parse({**where, "topic": "clicks", "kiel.zookeeper.connect": "z:0"})


def test_partitions_are_assigned_by_json() -> None:
    """Partitions that are listed twice count once, and the result is sorted."""
    given = {"kafka.bootstrap.servers": "one", "assign": '{"b": [2, 0, 2], "a": [1]}'}
    assert ReadOptions.parse(given, streaming=False).assigned == (
        TopicPartition("a", 1),
        TopicPartition("b", 0),
        TopicPartition("b", 2),
    )


@pytest.mark.parametrize(("text", "milliseconds"), [("500ms", 500), ("30 s", 30_000), ("15m", 900_000), ("2", 2)])
def test_times_have_units(text: str, milliseconds: int) -> None:
    """The units are Spark's. A number without a unit means milliseconds."""
    assert parse(minOffsetsPerTrigger="5", maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


def test_options_of_spark_are_accepted() -> None:
    """These options include the folder of the checkpoint."""
    parse(path="/x", checkpointLocation="/y", queryName="z")


REFUSED = [
    ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers: no address given"),
    ({"subscribePattern": "c.*"}, "subscribe and subscribePattern given"),
    ({"subscribe": " , "}, "names no topic"),
    ({"subscribe": "a b"}, "subscribe: 'a b' is not a legal name"),
    ({"subscribePattern": "("}, "subscribePattern: '(' is no regular expression"),
    ({"subscribePattern": " "}, "subscribePattern: ' ' is blank, and no topic has such a name"),
    (
        {"startingOffsets": "begin"},
        "startingOffsets: 'begin' given; expected 'earliest', 'latest', 'group', or offsets such as {\"topic\": {",
    ),
    ({"startingOffsets": "{soon}"}, "startingOffsets: '{soon}' is no JSON"),
    ({"startingOffsets": "[1]"}, "startingOffsets: '[1]' given; expected 'earliest'"),
    ({"startingOffsets": '{"t": 3}'}, "3 given for t"),
    ({"startingOffsets": '{"t": {"x": 3}}'}, "'x' is no partition of t"),
    ({"startingOffsets": '{"t": {"0": -3}}'}, "the offset -3 of t:0 cannot be; expected 0 or more, -2, -1"),
    ({"startingOffsets": '{"t": {"0": true}}'}, "the offset True of t:0"),
    ({"startingOffsets": '{"t": {"0": 1, "0": 2}}'}, "startingOffsets: '0' is given 2 times"),
    ({"startingOffsets": '{"t": {"0": 1}, "t": {"1": 2}}'}, "startingOffsets: 't' is given 2 times"),
    ({"startingOffsets": '{"t": {"00": 1}}'}, "'00' is no partition of t"),
    ({"startingOffsets": '{"t": {"2147483648": 1}}'}, "'2147483648' is no partition of t"),
    (
        {"startingOffsets": '{"t": {"0": 9223372036854775808}}'},
        "expected 0 or more, -2, -1, 9223372036854775807 at most",
    ),
    ({"startingOffsets": "group"}, "name it with kafka.group.id"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' given; expected true or false"),
    ({"minPartitions": "0"}, "minPartitions: '0' given; expected a whole number of at least 1"),
    ({"minPartitions": "9", "maxPartitions": "8"}, "minPartitions is 9, above maxPartitions, which is 8"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above maxOffsetsPerTrigger"),
    ({"maxTriggerDelay": "1m"}, "bounds the wait for minOffsetsPerTrigger"),
    ({"maxTriggerDelay": "1 fortnight", "minOffsetsPerTrigger": "1"}, "expected a time such as"),
    ({"membership": "maybe"}, "membership: 'maybe' given; expected none or join"),
    ({"membership": "join"}, "needs the group that is to be joined"),
    ({"membership": "join", "kafka.group.id": "g"}, "needs the ZooKeeper of the cluster"),
    ({"kafka.group.id": "a/b"}, "kafka.group.id: 'a/b' is not a legal name"),
    ({"kiel.zookeeper.connect": "z:0"}, "kiel.zookeeper.connect: 'z:0' is not an address"),
    ({"failOnCommitError": "true", "kiel.commit": "false"}, "failOnCommitError has nothing to watch"),
    ({"includeHeaders": "true"}, "includeHeaders: refused: messages of Kafka 0.8 have no headers"),
    ({"startingTimestamp": "1"}, "startingtimestamp: refused: messages of Kafka 0.8 carry no time"),
    ({"startingOffsetsByTimestamp": "{}"}, "carry no time"),
    ({"endingOffsetsByTimestamp": "{}"}, "carry no time"),
    ({"endingTimestamp": "1"}, "carry no time"),
    ({"groupIdPrefix": "x", "kafka.group.id": "g"}, "is for a query without kafka.group.id"),
    ({"kafka.auto.offset.reset": "latest"}, "startingOffsets says where"),
    ({"kafka.enable.auto.commit": "true"}, "Spark's checkpoint keeps the place"),
    ({"kafka.key.deserializer": "x"}, "keys and values are binary columns"),
    ({"kafka.value.deserializer": "x"}, "keys and values are binary columns"),
    (
        {"kafka.security.protocol": "TLS"},
        "kafka.security.protocol: 'TLS' given; expected PLAINTEXT, SSL, SASL_PLAINTEXT",
    ),
    (
        {"kafka.security.protocol": "SASL_SSL"},
        "kafka.sasl.mechanism: none given; expected kafka.sasl.mechanism, kafka.s",
    ),
    ({"kafka.ssl.truststore.location": "no.pem"}, "kafka.ssl.truststore.location: no.pem cannot be used: No such file"),
    ({"kafka.ssl.truststore.type": "JKS"}, "kafka.ssl.truststore.type: 'JKS' given; only files in PEM are read"),
    (
        {"kafka.ssl.truststore.password": "x"},
        "refused: only files in PEM are read, which have no password of their own",
    ),
    (
        {"kafka.ssl.keystore.location": " "},
        "kafka.ssl.keystore.location: ' ' given; expected the path of a file in PEM",
    ),
    ({"kafka.ssl.key.password": "x"}, "kafka.ssl.key.password: given without kafka.ssl.keystore.location"),
    ({"kafka.ssl.endpoint.identification.algorithm": "x"}, "'x' given; expected 'https', or an empty text"),
    ({"kafka.ssl.protocol": "TLSv1.3"}, "kafka.ssl.protocol: refused: this source has no such setting"),
    ({"kafka.sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism: 'GSSAPI' given; expected PLAIN, SCRAM-SHA-256, SCRAM"),
    ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.jaas.config: none given; expected kafka.sasl.mechanism"),
    (
        {"kafka.sasl.jaas.config": "Krb5LoginModule required;"},
        "kafka.sasl.jaas.config: not understood; expected PlainLog",
    ),
    ({"kafka.sasl.kerberos.service.name": "x"}, "refused: this source has no such setting"),
    ({"kafka.isolation.level": "read_committed"}, "no transactions"),
    ({"kafka.zookeeper.connect": "z"}, "the option is called kiel.zookeeper.connect"),
    ({"endingOffsets": "latest"}, "endingOffsets: has no meaning when reading a stream; it is for reading a batch"),
    ({"topic": "t"}, "topic: has no meaning when reading a stream; it is for writing"),
    ({"maxOffsetPerTrigger": "5"}, "there is no such option when reading a stream; did you mean maxOffsetsPerTrigger?"),
    (
        {"checkpointLocation": "s3a://lake/x"},
        "checkpointLocation: 's3a://lake/x' given to the reader, which looks into",
    ),
    ({"zzz": "5"}, "zzz: there is no such option when reading a stream; known ones: "),
    ({"brokers": "h:1"}, "brokers: refused: the option is called kafka.bootstrap.servers"),
    ({"zookeeper": "h:1"}, "zookeeper: refused: the option is called kiel.zookeeper.connect"),
    ({"zk_hosts": "h:1"}, "zk_hosts: refused: the option is called kiel.zookeeper.connect"),
    ({"group": "g"}, "group: refused: the option is called kafka.group.id"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_unsupported_options_of_a_stream_are_refused_with_the_reason(options: dict[str, str], reason: str) -> None:
    """Unsupported options are refused rather than ignored, because the user relies on them."""
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse({**LEAST, **options}, streaming=True)
    assert reason in str(caught.value)


JOINING = {"membership": "join", "kafka.group.id": "g", "kiel.zookeeper.connect": "z"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kiel.commit": "false"}, "kiel.commit: a member has to commit"),
        ({"startingOffsets": '{"clicks": {"0": 1}}'}, "a member starts where its group has got to"),
        ({"subscribe": None, "assign": '{"clicks": [0]}'}, "assign: a member of a group reads what it is allotted"),
    ],
)
def test_unsupported_options_of_a_member_are_refused(options: dict[str, str | None], reason: str) -> None:
    """The group determines what a member reads, and a member has to commit."""
    given = {name: text for name, text in {**LEAST, **JOINING, **options}.items() if text is not None}
    with pytest.raises(ConfigError, match=reason):
        ReadOptions.parse(given, streaming=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": "latest"}, "a batch that starts at 'latest' has nothing to read"),
        ({"endingOffsets": "earliest"}, "a batch that ends at 'earliest' has nothing to read"),
        ({"endingOffsets": '{"clicks": {"0": -2}}'}, "expected 0 or more, -1"),
        ({"startingOffsets": '{"clicks": {"0": -1}}'}, "the offset -1 of clicks:0 cannot be; expected 0 or more, -2,"),
        ({"kiel.commit": "true"}, "kiel.commit: has no meaning when reading a batch"),
        ({"membership": "join"}, "membership: has no meaning when reading a batch"),
    ],
)
def test_unsupported_options_of_a_batch_are_refused(options: dict[str, str], reason: str) -> None:
    """These are options of streams, and ranges that are always empty."""
    with pytest.raises(ConfigError, match=reason):
        ReadOptions.parse({**LEAST, **options}, streaming=False)


def test_options_that_change_no_result_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's own Kafka source accepts them, too: options of streams in a batch, and settings of Kafka's clients."""
    ReadOptions.parse({**LEAST, "maxOffsetsPerTrigger": "5", "kafka.max.poll.records": "9"}, streaming=False)
    (warning,) = caplog.messages
    assert warning.endswith("when reading a batch: kafka.max.poll.records, maxOffsetsPerTrigger")


@pytest.mark.parametrize("missing", list(LEAST))
def test_brokers_and_topics_have_to_be_named(missing: str) -> None:
    """Brokers and topics have no default."""
    with pytest.raises(ConfigError, match=missing):
        ReadOptions.parse({name: text for name, text in LEAST.items() if name != missing}, streaming=True)


def test_every_option_is_in_the_documentation() -> None:
    """The documentation uses the same option names as the errors."""
    page = (Path(__file__).parents[2] / "docs/spark.rst").read_text(encoding="utf-8")
    assert not [name for names in OPTION_NAMES.values() for name in names if f"``{name}``" not in page]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("kiel.archive.held", "{", "is no JSON"),
        ("kiel.archive.held", '{"clicks": {"0": {"to": "five"}}}', "offsets of another kind"),
        ("kiel.archive.schemas", "[]", "expected such as"),
        ("kiel.archive.schemas", '{"clicks": 5}', "are no schemas of topics"),
    ],
)
def test_damaged_options_of_an_archive_are_errors(name: str, text: str, reason: str) -> None:
    """Only the archive job passes these options, and an error names the option, not a line of code."""
    options = {"kafka.bootstrap.servers": "one", "subscribe": "clicks", name: text}
    with pytest.raises((ConfigError, ProtocolError), match=reason):
        ReadOptions.parse(options, streaming=True)


def test_the_options_about_tls_and_sasl_become_settings_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text in quotes may have escapes. Nothing shows the password."""
    monkeypatch.delenv(SECURITY_VARIABLE, raising=False)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": rf'{module} required username=reader password="wo\"rd; 5512";',
    }
    for parsed in (
        ReadOptions.parse({**LEAST, **options}, streaming=False),
        WriteOptions.parse({"kafka.bootstrap.servers": "one", **options}),
    ):
        parsed = pickle.loads(cloudpickle.dumps(parsed))
        config = BrokerConfig(hosts=parsed.brokers, **parsed.arguments)
        assert (config.security_protocol, config.ssl_check_hostname) == ("SASL_SSL", False)
        assert (config.sasl_plain_username, config.sasl_plain_password) == ("reader", 'wo"rd; 5512')
        assert "5512" not in repr((parsed, config))


def test_executors_get_the_path_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An executor whose environment names another file uses that one."""
    (tmp_path / "driver.toml").write_text("[kafka]\ntls = true\n")
    monkeypatch.setenv(SECURITY_VARIABLE, str(tmp_path / "driver.toml"))
    options = pickle.loads(cloudpickle.dumps(ReadOptions.parse({**LEAST}, streaming=False)))
    monkeypatch.delenv(SECURITY_VARIABLE)
    assert options.broker_config.security == str(tmp_path / "driver.toml")
    monkeypatch.setenv(SECURITY_VARIABLE, "/executors.toml")
    assert options.broker_config.security == "/executors.toml"


def test_a_member_of_a_group_looks_for_brokers_listeners_of_its_protocol(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It finds brokers in ZooKeeper, too."""
    (tmp_path / "file.toml").write_text("[kafka]\ntls = true\n")
    monkeypatch.setenv(SECURITY_VARIABLE, str(tmp_path / "file.toml"))
    options = ReadOptions.parse({**LEAST, "kiel.zookeeper.connect": "z"}, streaming=False)
    assert options.zookeeper is not None
    assert options.zookeeper.broker_protocol == "SSL"
