"""Upper bounds of dependencies: what a fresh install may take, and CONTRIBUTING's table of them."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def upper_bounds() -> dict[str, str]:
    """Name and bound of every requirement that has one, those of all extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(line) for lines in lists for line in lines]
    return {
        requirement.name: str(part)
        for requirement in requirements
        for part in requirement.specifier
        if part.operator in ("<", "<=")
    }


def test_typer_gets_a_click_that_it_can_import() -> None:
    """Click 9 removes `get_binary_stream`, which typer 0.20 imports when it is imported itself."""
    assert upper_bounds()["click"] == "<9"


def test_contributing_explains_every_upper_bound() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| `(<[^`]*)` \| \S", text, re.MULTILINE)
    assert dict(rows) == upper_bounds()
    assert [name for name, _ in rows] == sorted(upper_bounds())
