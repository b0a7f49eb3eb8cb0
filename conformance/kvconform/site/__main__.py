"""Writes what the site is built from: the completed chapters, the generated pages, and the navigation.

    python -m kvconform.site FOLDER

`FOLDER/docs` is made anew. The site's builder is then run on `FOLDER/mkdocs.yml`.
"""

import json
import shutil
import sys
from itertools import chain
from pathlib import Path

from kvconform.site import CHAPTERS, ROOT
from kvconform.site.linking import completed, linked
from kvconform.site.pages import Page, defect_pages, interface_pages, rules_page, title_of, vector_pages
from kvconform.site.prose import ORDER, chapters

FOLDERS = (("defects", "Defects"), ("vectors", "Vectors"), ("api", "Code"))
"""The folders of generated pages, and what the navigation calls them."""

ENGINES = ("engines.md", "attach.md", "attach-vllm.md")
"""The pages about real engines, in their order."""


def write(folder: Path) -> None:
    """Write everything below `folder`."""
    docs = folder / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(CHAPTERS / "assets", docs / "assets")
    written = [(path.name, title_of(path), completed(path)) for path in chapters()]
    for name in ENGINES:
        path = ROOT / "conformance/docs" / name
        written.append((name, title_of(path), linked(path.read_text(encoding="utf-8"))))
    written.append(rules_page())
    generated = list(chain(defect_pages(), vector_pages(), interface_pages()))
    for place, _, text in (*written, *generated):
        path = docs / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    config = (CHAPTERS / "site.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(f"{config}{navigation(written, generated)}", encoding="utf-8")


def navigation(written: list[Page], generated: list[Page]) -> str:
    """The navigation, as YAML: chapters in their order, then a section for each folder."""
    order = [*ORDER, "rules.md", *ENGINES]
    lines = ["nav:"]
    for place, title, _ in sorted(written, key=lambda page: order.index(page[0])):
        lines.append(f"  - {json.dumps(title)}: {place}")
    for folder, name in FOLDERS:
        lines.append(f"  - {json.dumps(name)}:")
        pages = [page for page in generated if page[0].startswith(f"{folder}/")]
        for place, title, _ in sorted(pages, key=lambda page: page[0] != f"{folder}/index.md"):
            lines.append(f"      - {place}" if place.endswith("/index.md") else f"      - {json.dumps(title)}: {place}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
