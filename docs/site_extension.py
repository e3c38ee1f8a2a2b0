"""
Make a site of pages that stay plain reStructuredText, so that code hosts show them, too.

- The lists of ``docs/index.rst`` become the tables of contents.
- A literal that names a page, such as ``glossary.rst``, becomes a link with the title of the page.
- The first use of a term on a page links to the glossary.
- Blocks of commands and their output are highlighted, and a selection has only the commands.
- The directive ``commands`` has the help of the commands in a section of the command line.
- The end of a build checks that each link within the site has a target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote, urlsplit

import click
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from kiel_groups.cli.app import NAME, SECTIONS
from kiel_groups.cli.app import app as command_line

log = logging.getLogger(__name__)

_GLOSSARIES = ("docs/glossary", "docs/glossary-workers")
#: The names by which the site calls pages whose own titles say less there.
_NAMES = {"README": "First steps", "zookeeper/README": "The znodes"}
#: Terms that pages also use in an ordinary sense.
_ORDINARY_WORDS = (
    *("away", "deliver", "finished", "folder", "gate", "lost", "paused", "plan", "position", "program", "release"),
    *("reset", "round", "session", "slot", "task", "version", "watch", "work", "worker"),
)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", link_pages)
    app.connect("doctree-read", mark_commands)
    app.connect("doctree-read", note_terms)
    app.connect("doctree-resolved", link_terms)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add tables of contents, without text of their own, to the index, and leave the decisions out of them."""
    if docname == "docs/index":
        for title, body in re.findall(r"^(.+)\n-+\n\n((?:.*\n)*?)(?=^.+\n-+\n|\Z)", source[0], re.MULTILINE):
            pages = [_page(app, docname, name) for name in re.findall(r"^- ``([^`]+)``", body, re.MULTILINE)]
            named = [f"{_NAMES[page]} </{page}>" if page in _NAMES else f"/{page}" for page in pages if page]
            entries = "".join(f"   {entry}\n" for entry in named)
            source[0] += f"\n.. toctree::\n   :hidden:\n   :caption: {title}\n\n{entries}"
    elif docname.startswith("docs/decisions/0"):
        # Their index links to them. In the contents, which each page has, they would be a third of all entries.
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"


def link_pages(app: Sphinx, document: nodes.document) -> None:
    """Replace literals that name a page, and links to its file, by links to it. Links to other files become text."""
    docname = app.env.docname
    for literal in list(document.findall(nodes.literal)):
        text = literal.astext()
        page = _page(app, docname, text)
        if page and not isinstance(literal.parent, nodes.reference):
            name = _NAMES.get(page, "")
            literal.replace_self(_link(docname, page, name or text, is_named=bool(name)))
        elif not page and re.fullmatch(r"[\w./-]+\.rst", text):
            log.warning("there is no page %s", text, location=literal)

    for reference in list(document.findall(nodes.reference)):
        parts = urlsplit(reference.get("refuri", "#"))
        if not parts.scheme and parts.path:
            page = _page(app, docname, parts.path)
            text = reference.astext()
            reference.replace_self(_link(docname, page, text, is_named=True) if page else nodes.inline(text, text))


def _link(docname: str, page: str, text: str, *, is_named: bool) -> nodes.Node:
    """Return a link to a page, with this text or, if that names only the file, with the title of the page."""
    link = addnodes.pending_xref("", refdomain="std", reftype="doc", reftarget=f"/{page}", refdoc=docname)
    link["refexplicit"], link["refwarn"] = is_named, True
    link += nodes.inline(text, text)
    return link


def _page(app: Sphinx, docname: str, path: str) -> str | None:
    """Return the page that a path names, relative to the page ``docname``, to ``docs`` or to the repository."""
    if not re.fullmatch(r"[\w./-]+\.(?:rst|md)|docs/decisions(?:/\d{4})?", path):
        return None
    for folder in (PurePosixPath(docname).parent, PurePosixPath("docs"), PurePosixPath()):
        for named in (folder / path).with_suffix(""), folder / path / "README":
            found = normpath(named)
            if found in app.env.found_docs:
                return found
    number = re.fullmatch(r"docs/decisions/(\d{4})", path)
    return next(
        (page for page in app.env.found_docs if number and PurePosixPath(page).name.startswith(number[1])), None
    )


def mark_commands(app: Sphinx, document: nodes.document) -> None:
    """Mark the blocks in which lines that begin with ``$`` are commands, and the others their output."""
    for block in document.findall(nodes.literal_block):
        if block.astext().startswith("$ ") and "language" not in block:
            block["language"] = "console"


def note_terms(app: Sphinx, document: nodes.document) -> None:
    """Give the definitions of a glossary ids, and tell Sphinx of them."""
    if app.env.docname in _GLOSSARIES:
        for term in document.findall(nodes.term):
            name = term.astext()
            label = f"term-{nodes.make_id(name)}"
            term["ids"].append(label)
            app.env.domains.standard_domain.note_object("term", name, label, location=term)


def link_terms(app: Sphinx, document: nodes.document, docname: str) -> None:
    """Link the first use of each term in the text of a page to its definition."""
    if not docname.startswith(("docs/", "zookeeper/")) or docname in _GLOSSARIES:
        return
    terms = {
        name.partition(" (")[0]: (page, label)
        for name, _, kind, page, label, _ in sorted(app.env.domains.standard_domain.get_objects(), reverse=True)
        if kind == "term"
    }
    for word in _ORDINARY_WORDS:
        terms.pop(word, None)
    for text in list(document.findall(nodes.Text)):
        if terms and _is_prose(text):
            pattern = rf"\b({'|'.join(sorted(map(re.escape, terms), key=len, reverse=True))})(s?)\b"
            _link_first(app, docname, text, pattern, terms)


def _is_prose(text: nodes.Text) -> bool:
    """Return whether a text is in a sentence, and is no link, title or code."""
    parent: nodes.Node | None = text.parent
    if not isinstance(parent, nodes.paragraph | nodes.emphasis | nodes.strong):
        return False
    while parent is not None:
        if isinstance(parent, nodes.reference | nodes.title | nodes.literal | addnodes.desc_signature):
            return False
        parent = parent.parent
    return True


def _link_first(app: Sphinx, docname: str, text: nodes.Text, pattern: str, terms: dict[str, tuple[str, str]]) -> None:
    """Link each term that occurs in a text, and remove it from ``terms``."""
    parts: list[nodes.Node] = []
    rest = str(text)
    at = 0
    for found in re.finditer(pattern, rest):
        if found[1] in terms:
            page, label = terms.pop(found[1])
            link = make_refnode(app.builder, docname, page, label, nodes.inline("", found[0]))
            link["classes"].append("term")
            parts += [nodes.Text(rest[at : found.start()]), link]
            at = found.end()
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(rest[at:])])


class Commands(SphinxDirective):
    """The help of each command in a section of ``kiel-groups --help``, as the command prints it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name in SECTIONS[self.arguments[0]]:
            found += [self._section(*each) for each in _helps((name,))]
        return found

    def _section(self, words: tuple[str, ...], text: str) -> nodes.Node:
        title = " ".join((NAME, *words))
        section = nodes.section("", nodes.title(title, title), ids=[nodes.make_id(title)], names=[title])
        section += nodes.literal_block(text, text, language="text")
        self.state.document.note_explicit_target(section)
        return section


def _helps(words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words and the help of a command, and of the commands below it."""
    command: click.Command | None = command_line
    context = click.Context(command_line, info_name=NAME, **command_line.context_settings)
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
        assert command is not None
        context = click.Context(command, info_name=word, parent=context, max_content_width=80, terminal_width=80)
    assert command is not None
    yield words, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _helps((*words, name))


class _Links(HTMLParser):
    """The links and the ids of a page of the site."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def check_links(app: Sphinx, error: Exception | None) -> None:
    """Warn of each link within the site whose page or place does not exist."""
    if error or app.builder.name != "html":
        return
    read = cache(_Links)
    root = Path(app.outdir)
    for page in sorted(root.rglob("*.html")):
        for link in sorted(read(page).links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            fragment = unquote(parts.fragment)
            if not target.exists():
                log.warning("%s: there is no %s", page.relative_to(root), link)
            elif fragment and target.suffix == ".html" and fragment not in read(target).ids:
                log.warning("%s: there is no place %s", page.relative_to(root), link)
