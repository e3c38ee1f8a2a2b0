"""Messages of commands name options, and not the settings of the Python interface."""

from __future__ import annotations

import click
import pytest

from kiel_groups.cli import app as cli
from kiel_groups.cli.app import app
from kiel_groups.cli.parameters.option_words import with_options

pytestmark = pytest.mark.unit

#: Servers at an address where none listens.
NOWHERE = ("--brokers=127.0.0.1:1", "--zookeeper=127.0.0.1:1")


def command(name: str) -> click.Command:
    found = app.get_command(click.Context(app), name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "in_options"),
    [
        ("zk_hosts: none given", "--zookeeper: none given"),
        (
            "store: 'broker-v1' needs Kafka; use store='zookeeper'",
            "--store: 'broker-v1' needs Kafka; use --store zookeeper",
        ),
        ("with coordination='brokers', leave it out", "with --coordination brokers, leave it out"),
        ("raise session_timeout_ms, or the server's", "raise --session-timeout-ms, or the server's"),
        ("give all the same partition_allocator", "give all the same --allocator"),
        ("auto_offset_reset is 'none'", "--from is 'none'"),
        ("rack: '' given", "--rack: '' given"),
        ("the rack: 'east'", "the rack: 'east'"),
        ("of topic 'zk_hosts', my-zk_hosts", "of topic 'zk_hosts', my-zk_hosts"),
        ("use GroupedConsumer(instance_id=None)", "use GroupedConsumer(instance_id=None)"),
        ("max_bytes: 0 given", "max_bytes: 0 given"),
    ],
)
def test_settings_have_the_names_of_options(text: str, in_options: str) -> None:
    """A setting gets the name of its option. A name in quotes, in a call, or without an option stays."""
    assert with_options(text, command("consume")) == in_options


def test_a_command_without_the_option_keeps_the_name() -> None:
    """An option of another command would only mislead."""
    assert with_options("session_timeout_ms: 5 given", command("produce")) == "session_timeout_ms: 5 given"


@pytest.mark.parametrize(
    ("name", "text", "in_options"),
    [
        ("drain", "it is a host: give host='web-1'", "it is a host: give --host web-1"),
        ("drain", "without an owner by leave_unowned", "without an owner by --leave-unowned"),
        ("plan", "partitions: pv=1 given", "--partitions: pv=1 given"),
        ("plan", "topics: pv does not exist", "--topics: pv does not exist"),
    ],
)
def test_fields_of_requests_to_the_service_have_the_names_of_options(name: str, text: str, in_options: str) -> None:
    """The same errors are answers of the service, to whose users an option means nothing."""
    assert with_options(text, command(name)) == in_options


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("consume", "t", "--group=g", *NOWHERE, "--session-timeout-ms=5"), "--session-timeout-ms: 5 given; expected"),
        (("consume", "t", "--brokers=b:port"), "--brokers: 'b:port' is not an address"),
        (("groups", "--coordination=brokers", "--brokers=b:port"), "--brokers: 'b:port' is not an address"),
        (
            ("consume", "t", "--group=g", "--brokers=127.0.0.1:1", "--coordination=brokers", "--capacity=3"),
            "--capacity: 3.0 given; with --coordination brokers, only allocators",
        ),
        (
            ("workers", "run", "--group=g", *NOWHERE, "--session-timeout-ms=0"),
            "--session-timeout-ms: 0 given; expected",
        ),
        (("serve", "--zookeeper=127.0.0.1:1", "--host=0.0.0.0"), "--host: other machines can connect to 0.0.0.0"),
        (("serve", "--zookeeper=127.0.0.1:1", "--group=x/y"), "--group: 'x/y' is not a legal name"),
    ],
)
def test_errors_of_commands_name_their_options(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a user has given wrongly is named as the user has named it."""
    assert cli.run(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {error}")
