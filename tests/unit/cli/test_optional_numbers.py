"""Options whose number may be omitted."""

from __future__ import annotations

import pytest

from kiel_groups.cli.app import run

pytestmark = pytest.mark.unit

BROKERS = ["--coordination=brokers", "--brokers=127.0.0.1:1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lag", "g", "--check=-1"], "'--check': '-1' is not a number of records ≥ 0."),
        (["lag", "g", "--check", "-1"], "'--check': '-1' is not a number of records ≥ 0."),
        (["lag", "g", "--check=1.5"], "'--check': '1.5' is not a number of records ≥ 0."),
        (["lag", "--check", "g"], "'--check': 'g' is not a number of records ≥ 0; GROUP goes before this option."),
        (["lag", "g", "--check=-n"], "'--check': '-n' is not a number of records ≥ 0; GROUP goes before this option."),
        (["describe", "g", "--history=-1"], "'--history': '-1' is not a number of plans ≥ 1."),
        (["describe", "g", "--history", "0"], "'--history': '0' is not a number of plans ≥ 1."),
        (["lag", "g", "--watch", "nan"], "'--watch': 'nan' is not a number of seconds ≥ 0.1."),
        (["lag", "g", "--watch", "inf"], "'--watch': 'inf' is more than 31,536,000 seconds."),
        (["verify", "g", "--timeout", "1e10s"], "'--timeout': '1e10' is more than 31,536,000 seconds."),
        (["consume", "t", "--timeout", "nan"], "'--timeout': 'nan' is not a number of seconds ≥ 0.001."),
        (["describe", "g", "--watch=-2.5"], "'--watch': '-2.5' is not a number of seconds ≥ 0.1."),
    ],
)
def test_a_number_out_of_range_is_refused_as_a_number(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A negative number is not taken for an option. The hint about GROUP is for words that are no numbers."""
    assert run([*words, *BROKERS]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: Invalid value for {message} See 'kiel-groups {words[0]} --help'.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lag", "g", "-1"], "No such option '-1'."),
        (["lag", "--", "--check=-1"], "no broker answered"),
        (["lag", "g", "--check", "--json"], "no broker answered"),
        (["lag", "g", "--check", "0"], "no broker answered"),
    ],
)
def test_other_words_are_not_taken_for_numbers(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option may follow the one without a number, and arguments may look like options after ``--``."""
    assert run([*words[:1], *BROKERS, *words[1:]]) in (1, 2)
    assert capsys.readouterr().err.startswith(f"error: {message}")
