"""Text from outside is shown as the characters that it is."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fedtranscribe.text import counted, markdown, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run-1", "run-1"),
        ("Würzburg ε\u00a0=\u00a01 癌", "Würzburg ε\u00a0=\u00a01 癌"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x9b31m\x07", r"\x1b[2J\x9b31m\x07"),
        ("\u202egnp.exe\u2066", r"\u202egnp.exe\u2066"),
        ("a\u2028b\u200b", r"a\u2028b\u200b"),
        ("\udcff.png", r"\udcff.png"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_would_act_on_a_terminal_is_escaped(text, shown):
    assert printable(text) == shown


def test_long_texts_are_cut():
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 9 + "…"
    assert len(printable("x" * 10**6)) == 2_000


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_what_is_shown_is_one_printable_line(text):
    shown = printable(text)
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in shown)
    shown.encode()
    assert len(shown.splitlines()) <= 1


def test_markdown_renders_as_the_text():
    assert markdown("a_b | <!-- **c** `d` [e](f) \n# g") == (
        r"a\_b \| \<!-- \*\*c\*\* \`d\` \[e\](f) \\n\# g".replace("<!", r"<\!")
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("- a", r"\- a"),
        ("  + a", r"  \+ a"),
        ("===", r"\==="),
        ("-1 and a-b", r"\-1 and a-b"),
        ("1. a", r"1\. a"),
        ("90.5 of 96.0", "90.5 of 96.0"),
        ("12) a 3.5", r"12\) a 3.5"),
        ("https://evil.example/x", r"https\:\//evil\.example/x"),
        ("see //evil.example", r"see \//evil\.example"),
        ("www.evil.example", r"www\.evil\.example"),
        ("http://127.0.0.1/x", r"http\:\//127.0.0.1/x"),
        ("a@evil.example", r"a\@evil\.example"),
    ],
)
def test_markdown_begins_no_list_and_links_nowhere(text, written):
    assert markdown(text) == written
    rendered = MarkdownIt("commonmark").render(written)
    assert rendered == f"<p>{text.strip()}</p>\n"


def test_one_of_a_kind_has_no_plural():
    assert [counted(n, "teacher") for n in (0, 1, 2, 1_000)] == [
        *("0 teachers", "1 teacher", "2 teachers", "1,000 teachers")
    ]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
