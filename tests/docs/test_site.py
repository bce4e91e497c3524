"""The site builds without a warning, and a reader's browser asks nobody but the site itself."""

import html
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import doc_pages as pages
import pytest
import typer

import fedtranscribe
from fedtranscribe import config
from fedtranscribe.cli import app
from tests.report.browser import Browser, find

# What a browser fetches by itself; a link is followed only by who clicks on it.
_FETCHED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "form": "action",
}
_OUTSIDE = re.compile(r"^\s*(?:[a-z][a-z+.-]*:)?//", re.IGNORECASE)
_IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)")


class _Fetches(HTMLParser):
    """Collects what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in {_FETCHED.get(tag), "srcset"} & values.keys():
            self.found.append(values[name] or "")
        self.found += _IN_STYLES.findall(values.get("style") or "")
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += _IN_STYLES.findall(data)


def fetched(page: Path) -> list[str]:
    parser = _Fetches()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    # Another process: mkdocs and its plug-ins leave their marks on the one they run in.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=pages.ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "OMP_NUM_THREADS": "1",
            # They take minutes; test_notebooks.py runs them.
            "EXECUTE_NOTEBOOKS": "false",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "WARNING" not in said, said
    return folder


def test_every_page_is_there(site: Path):
    for page in pages.PAGES:
        assert (site / page.relative_to(pages.DOCS)).with_suffix(".html").is_file(), page
    for made in ("changelog", "reference/cli", "reference/settings", "figures/utility"):
        assert (site / f"{made}.html").is_file(), made
    for notebook in pages.NOTEBOOKS:
        page = site / "notebooks" / f"{notebook.stem}.html"
        assert f'href="{notebook.name}"' in page.read_text(encoding="utf-8")
        assert (page.parent / notebook.name).is_file()
    assert not (site / "hooks").exists()


def test_every_page_says_the_version(site: Path):
    for page in (site / "index.html", site / "reference" / "api" / "privacy.html"):
        title = re.search(r"<title>(.*)</title>", page.read_text(encoding="utf-8"), re.DOTALL)
        assert title is not None
        assert title[1].strip().endswith(f"fedtranscribe {fedtranscribe.__version__}")


def test_links_to_notebooks_lead_to_their_pages(site: Path):
    for page, link in (
        ("python.html", "notebooks/two-holders.html"),
        ("tutorials/privacy-card.html", "../notebooks/privacy-card.html"),
        ("notebooks/first-transcription.html", "privacy-card.html"),
    ):
        assert f'<a href="{link}"' in (site / page).read_text(encoding="utf-8"), page


def test_a_browser_fetches_nothing_from_elsewhere(site: Path):
    looked_at = 0
    for page in site.rglob("*.html"):
        for address in fetched(page):
            looked_at += 1
            assert not _OUTSIDE.match(address), f"{page.relative_to(site)} fetches {address}"
    assert looked_at > 100
    for sheet in site.rglob("*.css"):
        for address in _IN_STYLES.findall(sheet.read_text(encoding="utf-8")):
            assert not _OUTSIDE.match(address), f"{sheet.relative_to(site)} fetches {address}"


def test_a_fetch_from_elsewhere_would_be_noticed(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="https://a.example">x</a><script src="//b.example/x.js"></script>'
        "<style>@import 'https://c.example/y.css'; p { background: url(d.png) }</style>"
    )
    assert [a for a in fetched(page) if _OUTSIDE.match(a)] == [
        "//b.example/x.js",
        "https://c.example/y.css",
    ]


def test_the_index_of_the_search_lies_in_a_script(site: Path):
    # A page that was opened as a file may read a script, and no other file.
    script = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("var __index = "))
    assert any("ledger" in document["text"] for document in index["docs"])
    for page in site.rglob("*.html"):
        assert "javascripts/iframe-worker.js" in page.read_text(encoding="utf-8"), page


_SEARCH = """(() => {
    const box = document.querySelector(".md-search__input");
    box.focus();
    box.value = "ledger";
    box.dispatchEvent(new Event("input", { bubbles: true }));
    box.dispatchEvent(new Event("keyup", { bubbles: true }));
})()"""


def test_the_search_finds_pages_that_are_opened_as_files(site: Path, tmp_path: Path):
    program = find()
    if program is None:
        pytest.skip("no Chromium on this machine")
    with Browser(program, tmp_path / "profile") as browser:
        browser.open(site / "index.html", 1280, 900)
        until, found = time.monotonic() + 60, 0
        while not found and time.monotonic() < until:
            browser.evaluate(_SEARCH)
            time.sleep(0.3)
            found = browser.evaluate("document.querySelectorAll('.md-search-result__item').length")
        assert found > 0, browser.complaints
        browser.open(site / "figures" / "utility.html", 390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390


def leaves(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path.strip(), command
    for name, inner in (below or {}).items():
        yield from leaves(inner, path if name == "RUN" else f"{path} {name}")


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_the_command_line_is_there_whole(site: Path):
    told = text_of(site / "reference" / "cli.html")
    for path, command in leaves(typer.main.get_command(app)):
        assert f"fedtranscribe {path} [OPTIONS]" in told, path
        for parameter in command.params:
            assert all(option in told for option in parameter.opts if option.startswith("-"))


def test_every_setting_is_there(site: Path):
    told = text_of(site / "reference" / "settings.html")
    for kind in (config.TranscribeSettings, config.SynthesizeSettings, config.FederationSettings):
        assert kind.__name__ in told
        assert all(name in told for name in kind.model_fields)


def test_public_rooms_are_there(site: Path):
    wanted = {
        "privacy": ("Guarantee", "Ledger", "gaussian_epsilon", "published.dpsd_theorem1"),
        "noise": ("gaussian.LocalNoise", "masked.MaskedShare", "secagg_server.MaskingServer"),
        "questions": ("rows.ImageQuery", "moments.MomentsQuery", "statistic.Statistic"),
        "runs": ("transcription.transcribe", "finished.FinishedRun"),
        "trainers": ("synthesize.synthesize", "private_steps.DpSgdStep"),
        "holder": ("policy", "answering.Holder"),
        "rounds": ("plan.Plan", "server.Server"),
        "evaluation": ("comparison.compare", "evaluate.evaluate", "audit.audit"),
        "releases": ("verify", "PrivacyStatement"),
        "config": ("build",),
        "errors": ("BudgetExhaustedError",),
    }
    page = (site / "reference" / "api" / "fedtranscribe.html").read_text(encoding="utf-8")
    made = [f"api.{name}" for name in ("transcribe", "simulate", "synthesize")]
    names = (*made, "run.evaluate", "run.release", "run.Run", "run.Run.predict")
    assert [n for n in names if f'id="fedtranscribe.{n}"' not in page] == []
    assert 'id="fedtranscribe.load"' in page
    for room, names in wanted.items():
        page = (site / "reference" / "api" / f"{room}.html").read_text(encoding="utf-8")
        for name in names:
            assert f'id="fedtranscribe.{room}.{name}"' in page, f"{room}.{name}"
