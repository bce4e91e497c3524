"""What the pages of docs/ hold that a machine can check: Python, and commands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
# Not on the site, but they give the same commands.
READMES = [ROOT / "README.md", ROOT / "client" / "README.md", ROOT / "server" / "README.md"]

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
    """

    language: str
    line: int
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """Fenced blocks of a page in the given languages, in order."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match[1], text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


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
