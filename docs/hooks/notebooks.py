"""Notebooks as pages: stored without outputs, run while the site is built, shown as Markdown.

A notebook runs in a kernel of this environment, in a temporary folder that is its home as well.
Your own ledgers and runs are not touched. If a notebook fails, the build fails. To build the pages
without outputs, in seconds, set EXECUTE_NOTEBOOKS=false.
"""

import hashlib
import os
import posixpath
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

_TO_NOTEBOOK = re.compile(r"\]\(([\w./-]+)\.ipynb\)")
# Far more than the minute that each takes: the machine may be busy.
_SECONDS_PER_CELL = 900


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and its pictures."""
    run = bool(config.extra.get("execute_notebooks", True))
    for path in NOTEBOOKS:
        page, pictures = as_page(path, hashlib.sha256(path.read_bytes()).hexdigest(), run)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


@cache
def as_page(path: Path, digest: str, run: bool) -> tuple[str, dict[str, bytes]]:
    """A notebook's page as Markdown, and its pictures by name.

    Args:
        path: the notebook.
        digest: of its content, so that `mkdocs serve` runs it again only if it has changed.
        run: whether to run it.
    """
    notebook = executed(path) if run else nbformat.read(path, as_version=4)
    resources = {"output_files_dir": f"{path.stem}_files"}
    text, found = MarkdownExporter().from_notebook_node(notebook, resources=resources)
    title, rest = _TO_NOTEBOOK.sub(r"](\1.md)", text).split("\n", 1)
    link = f"[Download this notebook]({path.name}) to run it yourself."
    pictures = found.get("outputs", {})
    return f"{title}\n\n{link}\n{rest}", {posixpath.normpath(k): v for k, v in pictures.items()}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to notebooks, right for readers of the repository, to their pages."""
    if page.file.src_uri.startswith("notebooks/"):
        return markdown
    return _TO_NOTEBOOK.sub(r"](\1.md)", markdown)


def executed(path: Path) -> Any:
    """The notebook with its outputs.

    Raises:
        CellExecutionError: a cell has failed.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook-") as home:
        places = {"HOME": home, "IPYTHONDIR": f"{home}/.ipython", "FEDTRANSCRIBE_HOME": ""}
        # tqdm misses a package for bars that a page could not show.
        places["PYTHONWARNINGS"] = "ignore:IProgress not found"
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, **places, "PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}
        # Sockets in the folder, which no other user may enter; over TCP anybody could listen.
        kernel = {"transport": "ipc", "connection_file": f"{home}/kernel.json"}
        client = NotebookClient(
            notebook,
            timeout=_SECONDS_PER_CELL,
            kernel_name="python3",
            resources={"metadata": {"path": home}},
            config=Config({"KernelManager": kernel}),
        )
        client.execute(env=env)
    return notebook
