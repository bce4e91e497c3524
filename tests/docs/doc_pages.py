"""What the pages of docs/ hold that a machine can check: Python, and commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# Whole pages that test_tutorials.py does, in an empty folder.
FOLLOWED = [DOCS / "tutorials" / f"{name}.md" for name in ("hospital", "researcher", "operator")]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
# Not on the site, but they give the same commands.
READMES = [ROOT / "README.md", ROOT / "client" / "README.md", ROOT / "server" / "README.md"]

_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]*)"')
_INLINE = re.compile(r"`(fedtranscribe [^`]+)`")
_EXPECTED = re.compile(r"^print\(.*\)  # (.+)$")
_MORE_EXPECTED = re.compile(r"^# (.+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: what stands behind the fence.
        line: of the page, where its text begins.
        text: without the fences.
        title: that the site shows above it; empty if there is none.
    """

    language: str
    line: int
    text: str
    title: str = ""


def blocks(page: Path, *languages: str) -> list[Block]:
    """Fenced blocks of a page in the given languages, in order."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match[1], text.count("\n", 0, match.start(3)) + 1, match[3], _title(match[2]))
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def script(page: Path) -> str:
    """The page's commands and Python as one shell script, which stops at the first that fails.

    A shell block whose title begins with "Terminal" goes on in the background. The `text` block
    behind it shows the line that it prints once the reader can go on: the script waits for that
    line, up to its "…". Blocks that begin with `pip install` are left out.
    """
    lines = ["set -euo pipefail"]
    ready = iter(blocks(page, "bash", "python", "text"))
    for block in ready:
        if block.language == "python":
            lines.append(f"python - <<'PYTHON'\n{block.text}PYTHON")
        elif block.language == "bash" and block.title.startswith("Terminal"):
            shown = next(ready)
            assert shown.language == "text", f"{page}:{block.line}: nothing says when it is ready"
            last = shown.text.splitlines()[-1].partition("…")[0].strip()
            log = f"{block.title.split(':')[0].replace(' ', '-')}.log"
            lines.append(f"{{\n{block.text}}} >{log} 2>&1 &")
            lines.append(
                f"until grep -qF {shlex.quote(last)} {log}; "
                f"do kill -0 $! || {{ cat {log}; exit 1; }}; sleep 1; done"
            )
        elif block.language == "bash" and not block.text.startswith("pip install"):
            lines.append(block.text)
    return "\n".join(lines)


def _title(info: str) -> str:
    found = _TITLE.search(info)
    return found[1] if found else ""


def commands(page: Path) -> Iterator[tuple[int, str]]:
    """Command lines of shell blocks that begin with `fedtranscribe `, with the line they are on."""
    for block in blocks(page, "bash", "console"):
        # A backslash at the end of a line joins it with the next one.
        for offset, line in _joined(block.text):
            line = line.strip().removeprefix("$ ")
            if line.startswith("fedtranscribe "):
                yield block.line + offset, line


def mentioned(page: Path) -> Iterator[str]:
    """Commands in running text and tables; they may be cut short."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from (match[1] for match in _INLINE.finditer(text))


def expected_output(code: str) -> list[str]:
    """What a block says that it prints: behind a `print`, or in the comments right below it."""
    lines, expected, printing = code.splitlines(), [], False
    for line in lines:
        behind, below = _EXPECTED.match(line), _MORE_EXPECTED.match(line)
        if behind:
            expected.append(behind[1])
        elif below and printing:
            expected.append(below[1])
        # A print of its own, or one that ends a loop's body.
        printing = bool(below and printing) or line.lstrip().startswith("print(")
    return expected


def _joined(text: str) -> Iterator[tuple[int, str]]:
    start, held = 0, ""
    for number, line in enumerate(text.splitlines()):
        if not held:
            start = number
        held += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield start, held
            held = ""
