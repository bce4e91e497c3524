"""CITATION.cff: the form that its readers expect, and the version that this is."""

import re
from pathlib import Path
from typing import Any

import pytest

import fedtranscribe

ROOT = Path(__file__).parents[1]
# Of the Citation File Format, version 1.2.0: what the file may say, and what it has to.
TOP_LEVEL = {
    "abstract",
    "authors",
    "cff-version",
    "date-released",
    "doi",
    "keywords",
    "license",
    "message",
    "references",
    "repository-code",
    "title",
    "type",
    "url",
    "version",
}
REQUIRED = {"authors", "cff-version", "message", "title"}
PERSON = {"family-names", "given-names", "orcid", "affiliation"}


@pytest.fixture(scope="module")
def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    # Dates and versions stay texts, as the format wants them.
    return yaml.load((ROOT / "CITATION.cff").read_text(encoding="utf-8"), yaml.BaseLoader)


def test_the_form_is_that_of_the_format(citation: dict[str, Any]) -> None:
    assert citation["cff-version"] == "1.2.0"
    assert set(citation) >= REQUIRED
    assert set(citation) <= TOP_LEVEL
    assert citation["type"] == "software"
    assert all(set(author) == {"name"} for author in citation["authors"])
    if released := citation.get("date-released"):
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", released)


def test_version_and_licence_are_the_packages(citation: dict[str, Any]) -> None:
    assert citation["version"] == fedtranscribe.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_paper_is_cited_as_the_readme_does(citation: dict[str, Any]) -> None:
    (paper,) = citation["references"]
    assert set(paper) >= {"type", "title", "authors"}
    assert all(set(author) <= PERSON for author in paper["authors"])
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert paper["title"] in readme
    for author in paper["authors"]:
        assert f"{author['given-names']} {author['family-names']}" in readme


def test_the_changelog_has_a_place_for_what_comes(citation: dict[str, Any]) -> None:
    """What is not released yet has no date; what is has one, and CITATION.cff has the same."""
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert heads[0] == "[Unreleased]"
    dates = dict(re.findall(r"^\[(.+)\] - (\d{4}-\d{2}-\d{2})$", "\n".join(heads), re.M))
    assert len(dates) == len(heads) - 1
    assert dates.get(fedtranscribe.__version__) == citation.get("date-released")
