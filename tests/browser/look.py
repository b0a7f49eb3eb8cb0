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
from html import unescape
from pathlib import Path

from kvcli.main import run_command

ROOT = Path(__file__).parents[2]
PAGES = {
    "run": ["run", "tail_freed_after_retract_p1", "--impl", "bug:retract-tail-orphaned", "-q"],
    "check": ["check", str(ROOT / "conformance/examples/reuse_before_the_fence.jsonl"), "-q"],
    "show": ["show", str(ROOT / "conformance/kvconform/vectors/retract-and-abort/tail_freed_after_retract_p4.jsonl")],
}
LOOKS = [("light", 1100), ("dark", 1100), ("light", 390), ("dark", 390)]
HEIGHT = 1200

PROBE = """
<script>
const article = document.querySelector("article");
const rows = [...article.querySelectorAll(".kv-trace tbody tr")];
const where = () => article.querySelector(".where").textContent;
const root = document.documentElement;
const seen = { rows: rows.length, overflow: root.scrollWidth - root.clientWidth };
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
document.body.setAttribute("data-seen", JSON.stringify(seen));
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


def wrong(seen: dict[str, object], scheme: str) -> list[str]:
    """What did not come out as it should."""
    rows = int(str(seen["rows"]))
    due = {
        "overflow": 0,
        "first": f"step {rows} of {rows}",
        "back": f"step {rows - 1} of {rows}",
        "on": f"step {rows} of {rows}",
        "key": f"step {rows - 1} of {rows}",
        "kept": seen["about"],
        "again": rows,
        "paper": "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 25, 29)",
    }
    return [f"{name} is {seen[name]!r}, not {value!r}" for name, value in due.items() if seen[name] != value]


def look(folder: Path) -> int:
    """Make the pages, probe and picture each; how many things are wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    problems = 0
    for name, command in PAGES.items():
        run_command([*command, "--html", f"{name}.html"])
        probed = folder / f"{name}-probed.html"
        probed.write_text((folder / f"{name}.html").read_text().replace("</body>", f"{PROBE}</body>"))
        for scheme, width in LOOKS:
            how = [f"--window-size={width},{HEIGHT}", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
            found = re.search(r'data-seen="([^"]*)"', chromium(*how, "--dump-dom", probed.as_uri()))
            told = wrong(json.loads(unescape(found[1])), scheme) if found else ["the page's script did not run"]
            chromium(*how, f"--screenshot={folder}/{name}-{scheme}-{width}.png", (folder / f"{name}.html").as_uri())
            print(f"{name}, {scheme}, {width} px: {'; '.join(told) or 'steps and filters'}")
            problems += len(told)
    return problems


if __name__ == "__main__":
    sys.exit(1 if look(Path(sys.argv[1]).resolve()) else 0)
