"""Writes the sources of the site: the completed chapters, the generated pages, and the navigation.

    python -m kvconform.site FOLDER

`FOLDER/docs` is made anew. The site's builder is then run on `FOLDER/mkdocs.yml`.
"""

import json
import shutil
import sys
from itertools import chain
from pathlib import Path

from kvconform.site import CHAPTERS, ROOT
from kvconform.site.cases import defect_pages, vector_pages
from kvconform.site.linking import completed, linked
from kvconform.site.pages import Page, grouped, interface_pages, rules_page, title_of
from kvconform.site.prose import ORDER, chapters
from kvconform.site.sources import sources_page

FOLDERS = (("defects", "Defects"), ("vectors", "Vectors"), ("api", "Code"))
"""The folders of generated pages, and their titles in the navigation."""

NOT_FOUND = "---\nsearch:\n  exclude: true\n---\n\n"
"""The front matter of a page that is excluded from searches."""

ENGINES = ("any-language.md", "engines.md", "attach.md", "attach-vllm.md", "hosts.md", "serve.md")
"""The pages of the guide, in their order."""

EXAMPLES = ROOT / "conformance/examples"
"""Files that the pages of the guide link to; they are beside them in the site."""


def write(folder: Path) -> None:
    """Write everything below `folder`."""
    docs = folder / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(CHAPTERS / "assets", docs / "assets")
    shutil.copytree(EXAMPLES, docs / EXAMPLES.name)
    written = [Page(path.name, title_of(path), completed(path)) for path in chapters()]
    written += map(engines_page, ENGINES)
    written += [rules_page(), sources_page()]
    generated = list(chain(defect_pages(), vector_pages(), interface_pages()))
    for page in (*written, *generated):
        path = docs / page.place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{'' if is_found(page) else NOT_FOUND}{page.text}", encoding="utf-8")
    config = (CHAPTERS / "site.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(f"{config}{navigation(written, generated)}", encoding="utf-8")


def is_found(page: Page) -> bool:
    """Whether a search finds a page: chapters and lists, which link to single vectors, defects and modules."""
    folder, _, name = page.place.rpartition("/")
    return not folder or name == "index.md"


def engines_page(name: str) -> Page:
    """A page about real engines; chapters are beside it in the site."""
    path = ROOT / "conformance/docs" / name
    text = linked(path.read_text(encoding="utf-8"))
    return Page(name, title_of(path), text.replace("](../../spec/docs/", "](").replace("](../examples/", "](examples/"))


def navigation(written: list[Page], generated: list[Page]) -> str:
    """The navigation, as YAML: chapters in their order, then a section for each folder, by chapters within."""
    order = [*ORDER, "rules.md", "sources.md", *ENGINES]
    lines = ["nav:"]
    lines += [_entry(page, 1) for page in sorted(written, key=lambda page: order.index(page.place))]
    for folder, name in FOLDERS:
        lines.append(f"  - {json.dumps(name)}:")
        pages = [page for page in generated if page.place.startswith(f"{folder}/")]
        lines += [f"      - {page.place}" for page in pages if page.place.endswith("/index.md")]
        for title, those in grouped(page for page in pages if page.chapter).items():
            lines.append(f"      - {json.dumps(title)}:")
            lines += [_entry(page, 5) for page in those]
    return "\n".join(lines) + "\n"


def _entry(page: Page, depth: int) -> str:
    return f"{'  ' * depth}- {json.dumps(page.title)}: {page.place}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
