"""Notebooks are stored without outputs, and run from top to bottom."""

import importlib.util
from pathlib import Path
from typing import Any

import doc_pages as pages
import nbformat
import pytest

PRINTED = {
    "first-transcription": "BudgetExhaustedError",
    "privacy-card": "it states ε = 1.0",
    "two-holders": "ε = 10 at δ = 1e-05",
}
"""What shows that the text of each notebook is true."""


@pytest.fixture(scope="module")
def hook() -> Any:
    """docs/hooks/notebooks.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("notebooks", pages.DOCS / "hooks/notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name(notebook: Path) -> str:
    return notebook.stem


def test_there_are_notebooks():
    assert [*map(name, pages.NOTEBOOKS)] == [*PRINTED]


@pytest.mark.parametrize("notebook", pages.NOTEBOOKS, ids=name)
def test_a_notebook_is_stored_without_outputs(notebook: Path):
    found = nbformat.read(notebook, as_version=4)
    nbformat.validate(found)
    assert found.metadata.kernelspec.name == "python3"
    assert found.cells[0].source.startswith("# ")
    for cell in found.cells:
        assert not cell.metadata
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_without_running_a_page_has_the_text_alone(hook: Any):
    text, pictures = hook.as_page(pages.NOTEBOOKS[0], "", run=False)
    assert text.startswith("# A first transcription in Python\n\n[Download this notebook]")
    assert pictures == {}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("notebook", pages.NOTEBOOKS, ids=name)
def test_a_notebook_runs(notebook: Path, hook: Any):
    found = hook.executed(notebook)
    printed = "".join(
        output.get("text", "")
        for cell in found.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert PRINTED[notebook.stem] in printed
    assert not [
        output
        for cell in found.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
