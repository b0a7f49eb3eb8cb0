"""Opens pages of findings in a headless browser: they are stepped through and filtered there, and pictures are taken.

    PYTHONPATH=. .venv/bin/python tests/browser/look.py FOLDER

needs Chromium (`chromium` of the Debian packages, or what CHROMIUM names). Pictures and pages are left in FOLDER.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from html import escape, unescape
from pathlib import Path

from kvcli.main import run_command
from kvconform.findings.timeline import FIRST_SEEN

ROOT = Path(__file__).parents[2]
PAGES = {
    "run": ["run", "tail_freed_after_retract_p1", "--impl", "bug:retract-tail-orphaned", "-q"],
    "check": ["check", str(ROOT / "conformance/examples/reuse_before_the_fence.jsonl"), "-q"],
    "long": ["show", "long.jsonl"],
    "show": ["show", str(ROOT / "conformance/kvconform/vectors/retract-and-abort/tail_freed_after_retract_p4.jsonl")],
}
LOOKS = [("light", 1280), ("dark", 1100), ("light", 400), ("dark", 390)]
HEIGHT = 1200

PROBE = """
<script>
const article = document.querySelector("article");
const rows = [...article.querySelectorAll(".kv-trace tbody tr:not(.kv-fold)")];
const folds = [...article.querySelectorAll(".kv-fold")];
const first = rows.filter(row => getComputedStyle(row).display !== "none").length;
folds.forEach(fold => fold.click());
const where = () => article.querySelector(".where").textContent;
const root = document.documentElement;
const seen = { rows: rows.length, width: innerWidth, overflow: root.scrollWidth - root.clientWidth };
seen.lines = rows.slice(-2).map(row => row.cells[0].textContent);
seen.text = Math.min(...rows.map(row => row.cells[1].getBoundingClientRect().width));
seen.folds = folds.length;
seen.unfolded = first;
seen.first = where();
article.querySelector(".back").click();
seen.back = where();
seen.panel = article.querySelector(".now-step").textContent;
article.querySelector(".on").click();
seen.on = where();
document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp" }));
seen.key = where();
const chip = [...article.querySelectorAll(".holders button")].pop();
seen.chip = chip.textContent;
chip.click();
seen.kept = rows.filter(row => getComputedStyle(row).display !== "none").length;
seen.about = rows.filter(row => JSON.parse(row.dataset.about).includes(chip.textContent)).length;
seen.faint = article.querySelectorAll(".faint").length;
chip.click();
seen.again = rows.filter(row => getComputedStyle(row).display !== "none").length;
seen.paper = getComputedStyle(document.body).backgroundColor;
top.document.body.setAttribute("data-seen", JSON.stringify(seen));
</script>
"""
"""Steps and filters as a reader would, and says what came of it."""


def chromium(*arguments: str) -> str:
    """Run the browser; what it prints."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no Chromium: apt-get install chromium, or name one in CHROMIUM")
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def framed(page: str, width: int) -> str:
    """A page in a frame of a width, in pixels: a window of Chromium is never narrower than 500."""
    return f'<body style="margin:0"><iframe style="border:0;width:{width}px;height:{HEIGHT}px" srcdoc="{escape(page)}">'


def wrong(seen: dict[str, object], scheme: str, width: int) -> list[str]:
    """The differences between the page and its description."""
    before, last = (f"line {line}" for line in seen["lines"])  # type: ignore[attr-defined]
    due = {
        "width": width,
        "overflow": 0,
        "first": last,
        "back": before,
        "on": last,
        "key": before,
        "kept": seen["about"],
        "again": seen["rows"],
        "paper": "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 25, 29)",
    }
    reported = [f"{name} is {seen[name]!r}, not {value!r}" for name, value in due.items() if seen[name] != value]
    if int(str(seen["rows"])) > FIRST_SEEN:
        due_folds = int(str(seen["folds"])) > 1 and int(str(seen["unfolded"])) < FIRST_SEEN
        reported += [] if due_folds else [f"{seen['folds']} folds, {seen['unfolded']} events seen at first"]
        reported += [] if float(str(seen["text"])) > 300 or width < 640 else [f"the text is {seen['text']} px wide"]
    return reported


def long_trace(path: Path) -> None:
    """Write 131 events and more, on 60 pages, of which the last breaks a rule."""
    lines: list[dict[str, object]] = [
        {"kvspec": 2, "level": "memory", "producer": "a test", "pools": {"kv": {"num_pages": 64, "page_size": 4}}},
        {"op": "take", "holder": "h", "pool": "kv", "pages": [[1, 20]]},
    ]
    for number in range(34):
        mine = {"holder": f"r{number}", "pool": "kv", "pages": [21 + number, 22 + number]}
        begin = {"op": "begin", "id": number, "stream": "s", "writes": [{"pool": "kv", "pages": mine["pages"]}]}
        lines += [{"op": "take", **mine}, begin, {"op": "end", "id": number}, {"op": "release", **mine}]
    lines.append({"op": "end_holder", "holder": "h"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def look(folder: Path) -> int:
    """Make the pages, probe and picture each; how many things are wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    long_trace(Path("long.jsonl"))
    problems = 0
    for name, command in PAGES.items():
        run_command([*command, "--html", f"{name}.html"])
        page, frame = (folder / f"{name}.html").read_text(), folder / f"{name}-framed.html"
        for scheme, width in LOOKS:
            how = [
                f"--window-size={max(width, 500)},{HEIGHT}",
                f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            ]
            frame.write_text(framed(page.replace("</body>", f"{PROBE}</body>"), width))
            found = re.search(r'data-seen="([^"]*)"', chromium(*how, "--dump-dom", frame.as_uri()))
            reported = (
                wrong(json.loads(unescape(found[1])), scheme, width) if found else ["the page's script did not run"]
            )
            frame.write_text(framed(page, width))
            chromium(*how, f"--screenshot={folder}/{name}-{scheme}-{width}.png", frame.as_uri())
            print(f"{name}, {scheme}, {width} px: {'; '.join(reported) or 'steps and filters'}")
            problems += len(reported)
    return problems


if __name__ == "__main__":
    sys.exit(1 if look(Path(sys.argv[1]).resolve()) else 0)
