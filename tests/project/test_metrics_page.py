"""The pages about metrics have each metric that the code sets, and no other one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest

from kiel_groups.members.zookeeper.monitors import KINDS
from kiel_groups.service.group_metrics import families
from tests.helpers.commands import REPOSITORY
from tests.helpers.metrics_page import PAGES, described
from tests.helpers.metrics_tables import with_tables

pytestmark = pytest.mark.unit

#: The methods of a registry, with the kind and the suffix of what they set.
_METHODS = {"count": ("counter", ""), "gauge": ("gauge", ""), "observe": ("summary", "_seconds")}


def calls() -> Iterator[ast.Call]:
    """Yield the calls in the package that set a metric of a registry."""
    for path in sorted((REPOSITORY / "kiel_groups").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _METHODS
                and ast.unparse(node.func.value).endswith("metrics")
            ):
                yield node


def test_the_metrics_of_registries() -> None:
    """The page has the kind of each metric that the code sets in a registry, and its labels."""
    kinds: dict[str, str] = {f"kiel_{kind}": "gauge" for kind in KINDS}
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for call in calls():
        assert isinstance(call.func, ast.Attribute)
        kind, suffix = _METHODS[call.func.attr]
        for node in ast.walk(call.args[0]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = f"kiel_{node.value}{suffix}"
                assert kinds.setdefault(name, kind) == kind
                labels[name] |= {str(keyword.arg) for keyword in call.keywords}
    of_service = {family.name for family in families([], 0)}
    listed = {name: each for name, each in described().items() if name.startswith("kiel_") and name not in of_service}
    assert {name: each.kind for name, each in listed.items()} == kinds
    assert {name: set(each.labels) for name, each in listed.items()} == {name: labels[name] for name in kinds}


def test_the_metrics_of_clusters_and_groups() -> None:
    """The page has the kind and the meaning of each, and the label that it has beside the cluster and the group."""
    for family in families([], 0):
        each = described()[family.name]
        assert (each.section, each.kind, each.meaning.partition(" By ")[0]) == (
            "Service",
            family.type,
            family.documentation,
        )


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_have_the_meanings_of_the_code(name: str) -> None:
    """A page equals what ``python -m tests.helpers.metrics_tables`` writes."""
    page = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    assert with_tables(page) == page
    assert with_tables(page.replace("Sessions with ZooKeeper", "Sessions")) == page
    assert with_tables(page.replace("Records that arrived.", "")) == page
