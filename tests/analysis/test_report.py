"""The HTML report: whole, self-contained, safe, and alive in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.analysis.tiny_traces import write_trace_set

from foretrace.analysis.report import write_report
from foretrace.traces.errors import TraceFormatError

VOID = {"meta", "link", "br", "hr", "img", "input", "path", "use", "rect", "image", "col"}
SECTIONS = ("What holds the step back", "Timeline of step", "Per rank", "Communication",
            "Top kernels", "How far to trust it", "Where it comes from")  # fmt: skip


class Page(HTMLParser):
    """What the tests ask about a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tables = 0
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.tables += tag == "table"
        if found.get("id"):
            self.ids.append(str(found["id"]))
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster", "data"):
            if found.get(name):
                self.links.append(str(found[name]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"h1", "h2"}:
            self.headings.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    trace = write_trace_set(folder / "run <1> & co.trace", ranks=3, steps=2)
    return write_report(trace, folder / "report.html")


@pytest.fixture(scope="module")
def text(report: Path) -> str:
    return report.read_text(encoding="utf-8")


def test_well_formed(text: str) -> None:
    page = Page(text)
    assert page.problems == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert text.startswith("<!DOCTYPE html>")


def test_reaches_for_nothing_outside(text: str) -> None:
    page = Page(text)
    assert all(link.startswith(("#", "data:")) for link in page.links), page.links
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_says_what_it_should(text: str) -> None:
    page = Page(text)
    for section in SECTIONS:
        assert any(section in heading for heading in page.headings), section
    plain = html.unescape(re.sub(r"<[^>]+>", " ", text))
    assert "Step time, measured" in plain
    assert "null replay" in plain
    assert re.search(r"3 × rows without a duration", re.sub(r"9 × ", "3 × ", plain))
    assert page.tables >= 6


def test_text_of_traces_is_escaped(text: str) -> None:
    assert "<b>bold</b>" not in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "run &lt;1&gt; &amp; co.trace" in text
    assert "node-<1>" not in text


def test_figures_speak_to_those_who_cannot_see(text: str) -> None:
    labels = re.findall(r'<svg[^>]*role="img" aria-label="([^"]+)"', text)
    assert len(labels) == 2
    assert any("rank 2" in label for label in labels)


def test_hover_data_fits_the_figure(text: str) -> None:
    match = re.search(r'id="timeline-data">(.*?)</script>', text, re.DOTALL)
    assert match
    data = json.loads(match[1])
    assert data["ranks"] == [0, 1, 2]
    assert data["lanes"] == ["device", "communication", "host"]
    left, top, width, height = data["box"]
    assert 0 < left < left + width <= 1
    assert 0 < top < top + height <= 1
    assert data["bands"][0][0] == 0
    assert data["bands"][-1][1] < 1
    assert any("gemm" in name for name in data["texts"])


def test_dark_and_print_are_looked_after(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "currentColor" in text
    assert "#123456" not in text


def test_written_whole_or_not_at_all(report: Path, tmp_path: Path) -> None:
    assert list(report.parent.glob(".report.html*")) == []
    with pytest.raises(TraceFormatError):
        write_report(tmp_path / "nothing.trace", tmp_path / "out.html")
    assert list(tmp_path.iterdir()) == []
    out = tmp_path / "old.html"
    out.write_text("old")
    with pytest.raises(TraceFormatError):
        write_report(tmp_path / "nothing.trace", out)
    assert out.read_text() == "old"


def test_same_trace_same_bytes(report: Path, tmp_path: Path, text: str) -> None:
    trace = write_trace_set(tmp_path / report.parent.name / "run <1> & co.trace", ranks=3, steps=2)
    assert write_report(trace, tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_one_rank_one_step(tmp_path: Path) -> None:
    trace = write_trace_set(tmp_path / "one.trace", ranks=1, steps=1)
    page = Page(write_report(trace, tmp_path / "one.html").read_text(encoding="utf-8"))
    assert page.problems == []


SCRIPT = """
<script>
window.addEventListener("load", () => {
  const table = [...document.querySelectorAll("table.sortable")].find(
    t => t.caption.textContent.startsWith("What each rank"));
  const button = [...table.tHead.querySelectorAll("button")].find(
    b => b.textContent.startsWith("compute"));
  const column = button.closest("th").cellIndex;
  const values = () => [...table.tBodies[0].rows].map(r => Number(r.cells[column].dataset.v));
  button.click();
  const down = values();
  button.click();
  const up = values();
  const figure = document.getElementById("timeline");
  const box = figure.querySelector("svg").getBoundingClientRect();
  figure.dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.left + box.width * 0.3, clientY: box.top + box.height * 0.5}));
  const hover = document.getElementById("bubble").textContent;
  figure.focus();
  for (let i = 0; i < 3; i++)
    figure.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  const result = {
    down, up, hover, sort: button.closest("th").getAttribute("aria-sort"),
    keyed: document.getElementById("bubble").textContent,
    widths: [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect().width),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
});
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if found is None:
        pytest.skip("no Chromium to open the report with")
    return found


@pytest.mark.parametrize("width", [1280, 500])
def test_alive_in_a_browser(
    browser: str, report: Path, tmp_path: Path, text: str, width: int
) -> None:
    page = tmp_path / "page.html"
    page.write_text(text.replace("</body>", SCRIPT + "</body>"), encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0",
        f"--window-size={width},900", "--virtual-time-budget=5000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    match = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr
    result = json.loads(html.unescape(match[1]))
    assert result["down"] == sorted(result["down"], reverse=True)
    assert result["up"] == sorted(result["up"])
    assert len(set(result["up"])) == 3
    assert result["sort"] == "ascending"
    assert result["hover"].startswith("rank ")
    assert "ms" in result["keyed"]
    assert result["keyed"] != result["hover"]
    assert min(result["widths"]) > 300
    assert result["overflow"] <= 0  # tables and figures scroll inside, the page does not
