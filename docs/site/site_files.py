"""Files of the repository on the site: links to them lead to highlighted pages, and raw HTML of pages keeps working.

Pages in docs/ link to designs, generated modules and tests by their paths in the repository. A path outside docs/, or
of a file that is no page, becomes `files/PATH.html`, so that the site needs no code host and works from a disk.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES_OF_THE_PROJECT = {  # files outside docs/ that the site includes as pages
    "README.md": "index",
    "CONTRIBUTING.md": "project/contributing",
    "CHANGELOG.md": "project/changes",
    "SECURITY.md": "project/security",
    "CODE_OF_CONDUCT.md": "project/conduct",
}
PLAYGROUND = ROOT / "build" / "playground"  # where `make playground` puts it
ALWAYS = ("specs/**/*.yaml", "codegen/**/*.py")  # what the gallery links to
_LOCAL_PAGE = re.compile(r'(<a href="(?!\w+:)[^"#]*)\.md([#"])')


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive and the steps."""
    app.add_directive("playground", Playground)
    app.connect("source-read", _raw_links)
    app.connect("doctree-read", _links, priority=400)  # before Sphinx collects downloads
    app.connect("html-collect-pages", _file_pages)
    app.connect("build-finished", _copy_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Playground(SphinxDirective):
    """`:::{playground}`: a link to the playground, where it was built before the site; else how to start it."""

    def run(self) -> list[nodes.Node]:
        """A button, or a sentence."""
        self.env.note_reread()  # whether it was built is no file that Sphinx watches
        if (PLAYGROUND / "index.html").exists():
            button = '<p><a class="playground-link" href="../playground/index.html">Open the playground</a></p>'
            return [nodes.raw("", button, format="html")]
        text = "This copy of the site was built without the playground. Run make playground before make site."
        return [nodes.note("", nodes.paragraph("", text))]


def wanted(app: Sphinx) -> set[str]:
    """The repository paths that pages link to; kept with the environment, since unchanged pages are not read again."""
    env = app.builder.env
    if not hasattr(env, "repository_files"):
        env.repository_files = set()  # type: ignore[attr-defined]
    found: set[str] = env.repository_files  # type: ignore[attr-defined]
    return found


def _raw_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Raw HTML links between pages get the suffix of the site."""
    source[0] = _LOCAL_PAGE.sub(r"\1.html\2", source[0])


def _links(app: Sphinx, doctree: nodes.document) -> None:
    """Turns each link to a file into one to its page on the site."""
    docname = app.env.docname
    for node in [*doctree.findall(addnodes.download_reference)]:
        path = _repository_path(docname, node["reftarget"])
        if path is None:
            continue
        link = nodes.reference("", "", internal=True, refuri=_uri(app, docname, path))
        link += [child.deepcopy() for child in node.children]
        node.replace_self(link)


def _repository_path(docname: str, target: str) -> str | None:
    """The path of a link's target in the repository; None where there is no such file."""
    if target.startswith("/"):  # MyST writes what it found from the root of docs/
        found = (DOCS / target.lstrip("/")).resolve()
    else:
        found = (DOCS / docname).parent.joinpath(target).resolve()
    return str(found.relative_to(ROOT)) if found.is_file() and found.is_relative_to(ROOT) else None


def _uri(app: Sphinx, docname: str, path: str) -> str:
    page = PAGES_OF_THE_PROJECT.get(path)
    if page is None:
        wanted(app).add(path)
        page = f"files/{path}"
    return relative_uri(app.builder.get_target_uri(docname), f"{page}.html")


def _file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that is linked to, and for each design and generated module."""
    paths = {*wanted(app), *(str(p.relative_to(ROOT)) for pattern in ALWAYS for p in ROOT.glob(pattern))}
    formatter = HtmlFormatter(cssclass="highlight", wrapcode=True)
    for path in sorted(paths):
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        try:
            lexer = get_lexer_for_filename(path)
        except ClassNotFound:
            lexer = TextLexer()
        body = f"<h1>{Path(path).name}</h1>\n<p><code>{path}</code></p>\n{highlight(text, lexer, formatter)}"
        yield f"files/{path}", {"title": path, "body": body, "parents": []}, "page.html"


def _copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Pictures that raw HTML shows stand beside the pages, as in docs/; the playground too, where it is built."""
    if error is None and app.builder.format == "html":
        shutil.copytree(DOCS / "pictures", Path(app.outdir) / "pictures", dirs_exist_ok=True)
        if (PLAYGROUND / "index.html").exists():
            shutil.copytree(PLAYGROUND, Path(app.outdir) / "playground", dirs_exist_ok=True)
