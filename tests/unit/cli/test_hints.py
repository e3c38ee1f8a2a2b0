"""Commands that texts name can be pasted, and options of Kafka's tool are explained."""

from __future__ import annotations

import pytest

from kiel_groups.cli.app import pasteable, run
from kiel_groups.wording import own_command

pytestmark = pytest.mark.unit

AT_BROKERS = ("describe", "g", "--coordination=brokers", "--brokers", "b:9092")


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        (
            "'kiel-groups describe g' shows it",
            AT_BROKERS,
            "describe g --coordination brokers --brokers b:9092' shows it",
        ),
        ("'kiel-groups describe g' shows it", ("lag",), "'kiel-groups describe g' shows it"),
        ("'kiel-groups lag g' x", ("lag", "--zookeeper", "z:2181/x"), "'kiel-groups lag g --zookeeper z:2181/x' x"),
        (
            "'kiel-groups lag g'",
            ("--config", "my file", *AT_BROKERS),
            "'kiel-groups --config 'my file' lag g --coordination brokers --brokers b:9092'",
        ),
        # Servers of the other coordination would be refused.
        (
            "'kiel-groups describe g --coordination brokers'",
            ("describe", "--zookeeper", "z"),
            "'kiel-groups describe g --coordination brokers'",
        ),
        ("'kiel-groups topics list'", ("produce", "t", "--brokers", "b"), "'kiel-groups topics list'"),
        ("'kiel-groups produce t'", AT_BROKERS, "'kiel-groups produce t --coordination brokers --brokers b:9092'"),
        (
            "'kiel-groups connectors status 'its name''",
            ("connectors", "create", "f", "--url=http://w:1", "--token-file", "t"),
            "'kiel-groups connectors status 'its name' --url http://w:1 --token-file t'",
        ),
        # The token of a service is not that of the workers.
        (
            "'kiel-groups workers run --group w'",
            ("--config", "c", "serve", "--token-file", "own"),
            "'kiel-groups --config c workers run --group w'",
        ),
        (
            "'kiel-groups connectors restart c'",
            ("serve", "--token-file", "own", "--worker-token-file=theirs"),
            "'kiel-groups connectors restart c --token-file theirs'",
        ),
        # Commands without such options, and texts that are no commands.
        ("'kiel-groups cluster down'", AT_BROKERS, "'kiel-groups cluster down'"),
        ("See 'kiel-groups describe --help'.", AT_BROKERS, "See 'kiel-groups describe --help'."),
        ("kiel-groups isn't 'there'", AT_BROKERS, "kiel-groups isn't 'there'"),
    ],
)
def test_a_command_in_a_text_gets_the_options_of_the_call(text: str, given: tuple[str, ...], expected: str) -> None:
    """Only those on the command line: the environment and the default file apply to the pasted command, too."""
    assert pasteable(text, given).endswith(expected)


def test_names_are_quoted_for_the_shell() -> None:
    """Brokers permit any name for a group."""
    text = f"{own_command('describe', 'my g')} and {own_command('lag', chr(39))} are it"
    assert pasteable(text, ("--zookeeper", "z")) == (
        "'kiel-groups describe 'my g' --zookeeper z' and 'kiel-groups lag ''\"'\"'' --zookeeper z' are it"
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["offsets", "reset", "--group", "g"], "The group is an argument: give its name without '--group'."),
        (["groups", "delete", "--group", "g"], "The group is an argument"),
        (
            ["offsets", "reset", "g", "--execute"],
            "Give '--yes' instead; without it, the command asks before it makes the",
        ),
        (["consume", "t", "--from-beginning"], "Give '--from earliest' instead."),
        (["produce", "--topic", "t"], "The topic is an argument: give its name without '--topic'."),
        (["topics", "create", "--topic", "t"], "The topic is an argument"),
        (["groups", "delete", "--topic", "t"], "No such option '--topic'. See"),
        (["lag", "--bootstrap-server", "b"], "Give '--coordination brokers --brokers HOST:PORT'."),
        (["describe", "g", "--execute"], "No such option '--execute'."),
    ],
)
def test_the_options_of_kafkas_tool_are_explained(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a command has another way to say the same."""
    assert run(words) == 2
    assert hint in capsys.readouterr().err
