"""`make docs-version`: one site for each version, and the reader chooses."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import doc_pages as pages
import pytest

import fedtranscribe

pytestmark = pytest.mark.long

COPIED = ("docs", "fedtranscribe", "benchmarks", "mkdocs.yml", "CHANGELOG.md", "Makefile")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of the pages alone: versions are commits on a branch of it."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in COPIED:
        place = pages.ROOT / name
        if place.is_dir():
            shutil.copytree(place, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, clone / name)
    git(clone, "init", "--quiet")
    git(clone, "config", "user.name", "docs")
    git(clone, "config", "user.email", "docs@example.org")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "pages")
    return clone


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_version_is_committed_beside_the_others(clone: Path):
    (rule,) = re.findall(
        r"^docs-version:.*\n((?:\t.*\n)+)", (clone / "Makefile").read_text(), re.MULTILINE
    )
    script = rule.replace("$$", "$").replace("$(abspath $(BIN))", "BIN").replace("$(BIN)", "BIN")
    script = script.replace("BIN", str(Path(sys.executable).parent))
    # Only the working copy's package is asked for its version.
    env = {**os.environ, "PYTHONPATH": f"{clone}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    env["EXECUTE_NOTEBOOKS"] = "false"
    done = subprocess.run(
        ["bash", "-ec", script], cwd=clone, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    version = fedtranscribe.__version__
    (entry,) = json.loads(git(clone, "show", "gh-pages:versions.json"))
    assert (entry["version"], entry["aliases"]) == (version, ["latest"])
    names = git(clone, "ls-tree", "--name-only", "gh-pages").split()
    assert {version, "latest", "index.html"} <= set(names)
    page = git(clone, "show", f"gh-pages:{version}/index.html")
    (config,) = re.findall(r'id="__config" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert json.loads(config)["version"]["provider"] == "mike"
    assert f"{version}/index.html" in git(clone, "show", "gh-pages:latest/index.html")
