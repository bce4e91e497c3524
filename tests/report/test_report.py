"""What a page says, and what it must not say; and how it looks in a real browser."""

import base64
import json
import re
import struct
from html.parser import HTMLParser

import pytest
import torch

from fedtranscribe.cli import run as cli
from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.evaluation import report as page
from fedtranscribe.evaluation.comparison import compare
from fedtranscribe.evaluation.report import write_comparison, write_report
from fedtranscribe.evaluation.report_facts import OWN_DATA, read_facts
from fedtranscribe.evaluation.report_samples import class_rows
from fedtranscribe.evaluation.report_words import asked_sums, judge, lines, shares
from fedtranscribe.noise.randomized_labels import TopKRandomizedResponse
from fedtranscribe.privacy.calibrate import EnsembleLayout
from fedtranscribe.privacy.events import Gaussian
from fedtranscribe.privacy.release_plan import MechanismRelease
from fedtranscribe.privacy.units import Adjacency, RowAnswer, Unit
from fedtranscribe.runs.preparation import prepare
from fedtranscribe.runs.transcription import transcribe
from tests.conftest import TINY_DPSD, TINY_TEACHERS
from tests.mechanisms_for import noisy_mean_rows
from tests.releases.conftest import OWN, own_data
from tests.report.browser import Browser, find
from tests.report.conftest import ROUNDS, ROWS, add_audit, reported

_VOID = frozenset({"meta", "link", "img", "br", "path", "use"})


class Page(HTMLParser):
    """Tags in balance, and what they carry."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in _VOID:
            assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def text_of(run) -> str:
    return write_report(run.path).read_text(encoding="utf-8")


def words_of(text: str) -> str:
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.DOTALL)
    return " ".join(plain.replace("\u00a0", " ").split())


# ---------------------------------------------------------------- what it says


def test_the_page_of_a_private_run(told):
    add_audit(told.path)
    text = text_of(told)
    said = words_of(text)
    assert "NOT PRIVATE" not in said
    assert f"ε = {told.result.guarantee.epsilon:.4g} at δ = 1e-5" in said
    assert "If a fair coin decides whether one given record is used" in said
    assert "The student labels 65.4 % of held-out images of digits correctly (always the" in said
    assert "most frequent class: 10.0 %; public images alone: 10.0 %)." in said
    assert "Published formula: 0.046. This is no guarantee." in said
    assert f"Sound ε: {told.result.guarantee.epsilon:.4g}." in said
    assert "Theorem 1 forgets a factor." in said
    assert "An adversary watched &lt;many&gt; answers." in said
    assert "therefore not shown here: loss" in said
    assert "One attack was tried on it, and what it found lies within the guarantee." in said
    # A teacher's accuracy is no public matter, not even on a benchmark.
    assert "91.2" not in said
    assert "912345" not in text


def test_the_page_is_whole_by_itself(told):
    add_audit(told.path)
    parsed = Page(text_of(told))
    assert parsed.all("html") == [{"lang": "en"}]
    assert not parsed.all("script")
    assert not parsed.all("iframe")
    for _, attributes in parsed.tags:
        for name in ("src", "href", "xlink:href", "data", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), value
    style = re.search(r"<style>(.*?)</style>", text_of(told), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    tables = len(parsed.all("table"))
    assert tables == len(parsed.all("caption")) >= 4


def test_every_picture_has_an_alternative_text(told):
    (told.path / "inversion.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    parsed = Page(text_of(told))
    pictures = parsed.all("img")
    assert len(pictures) >= 2
    assert all(len(picture["alt"] or "") > 15 for picture in pictures)
    assert len({picture["alt"] for picture in pictures}) == len(pictures)
    drawn = [a for a in parsed.all("div") if a.get("role") == "img"]
    assert len(drawn) == len(parsed.all("svg")) == 2
    assert all(len(a["aria-label"] or "") > 40 for a in drawn)
    assert "30 % after 25" in (drawn[1]["aria-label"] or "")


def test_sample_images_are_pngs_of_their_stated_size(told):
    for picture in Page(text_of(told)).all("img"):
        content = base64.b64decode((picture["src"] or "").split(",")[1])
        width, height = struct.unpack(">II", content[16:24])
        assert (str(width), str(height)) == (picture["width"], picture["height"])
        assert height == 28


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"private": False}, "NOT PRIVATE: the noise came from a seed."),
        ({"epsilon": None, "private": False, "method": "fedavg"}, "NOT PRIVATE: method fedavg"),
        ({"private": None}, "NOT PRIVATE: the run does not say"),
    ],
)
def test_a_run_without_a_guarantee_says_so_first(tmp_path, changes, words):
    run = reported(tmp_path / "run", **changes)
    said = words_of(text_of(run))
    assert words in said
    assert said.index("NOT PRIVATE") < said.index("ε, sound")
    assert "guarantee for every record" not in said
    assert "This run gives no guarantee." in said
    assert "What an attacker could do at best" not in said


def test_an_audit_that_contradicts_stands_on_top(told):
    add_audit(told.path, lower=3.5)
    said = words_of(text_of(told))
    assert "AN AUDIT CONTRADICTS THE GUARANTEE" in said
    assert "“game” proves at least ε = 3.5 where 2 is claimed" in said
    assert "contradicts" in said
    assert "not ok" in said


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [(0.5, "A strong guarantee"), (1.5, "A moderate guarantee"), (8.0, "A weak guarantee")],
)
def test_a_guarantee_is_called_what_it_is(tmp_path, epsilon, words):
    # Without events ε and δ alone are turned into the share of right guesses.
    run = reported(tmp_path / "run", epsilon=epsilon)
    (run.path / "events.jsonl").unlink()
    assert judge(read_facts(run.path)).headline.startswith(words)


def test_runs_of_other_kinds_and_with_missing_parts(tmp_path):
    run = reported(tmp_path / "other", method="dp-promise", generator=False)
    for name in ("events.jsonl", "student.safetensors"):
        (run.path / name).unlink()
    result = json.loads((run.path / "metrics.json").read_text())
    for key in ("curve", "sound", "published", "teachers", "noise_std", "accuracy", "accountant"):
        result.pop(key)
    (run.path / "metrics.json").write_text(json.dumps(result))
    (run.path / "audit.json").write_text("{damaged")
    said = words_of(text_of(run))
    assert "dp-promise on digits" in said
    assert "guarantee for every record" in said
    assert "Synthetic images" not in said


def test_evaluations_are_shown(told):
    told_figures = {
        "downstream": {"cnn": 0.71, "lda": None, "mean_sklearn": 0.5, "mean_sklearn_of": 3},
        "fidelity": {"fid": 12.34, "features": "cnn-64 trained on public images"},
    }
    (told.path / "evaluation.json").write_text(json.dumps(told_figures))
    said = words_of(text_of(told))
    assert "cnn 71.0 %" in said
    assert "mean of 3 by scikit-learn 50.0 %" in said
    assert "always the most frequent class 10.0 %" in said
    assert "FID 12.3" in said
    assert "lda" not in said


# ---------------------------------------------------------------- what it must not say


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A true run on somebody's own records."""
    folder = tmp_path_factory.mktemp("own")
    data = own_data(folder)
    ledger = folder / "book-of-ward-seven.sqlite"
    settings = TranscribeSettings(
        data=str(data),
        teacher="cnn-small",
        student="cnn-small",
        device="cpu",
        shards=20,
        rows=40,
        ledger=ledger,
        dpsd=TINY_DPSD,
        teachers=TINY_TEACHERS,
    )
    transcribe(prepare(settings), folder / "run", force=True)
    return folder / "run"


def test_nothing_of_a_users_own_records_is_told(own):
    text = write_report(own).read_text(encoding="utf-8")
    scores = json.loads((own / "private" / "accuracy.json").read_text())
    # Nothing shorter: in the letters of a picture, three or four stand by chance.
    for words in (OWN, "ward-seven", "patient-", str(own.parent), "teacher_folder"):
        assert words not in text
    # A rounded share may be some other figure, shares of 47 held-out records in full are none.
    shares = [str(score) for score in scores.values() if 0 < score < 1]
    assert not [share for share in shares if share in text]
    assert OWN_DATA in text
    assert "is not shown here" in text
    # Nor are real images shown.
    assert read_facts(own).public is None
    assert "Real images are not shown beside them" in text
    assert all("real images" not in (each["alt"] or "") for each in Page(text).all("img"))


def test_the_ledger_shows_its_head_and_no_answer(own):
    facts = read_facts(own)
    assert [digest.queries for digest in facts.ledgers] == [4]
    text = write_report(own).read_text(encoding="utf-8")
    assert facts.ledgers[0].hash in text
    from fedtranscribe.privacy.ledger import Ledger

    with Ledger.open_read_only(own.parent / "book-of-ward-seven.sqlite") as ledger:
        assert ledger.head.hash == facts.ledgers[0].hash
        ids = [entry.query_id for entry in ledger.entries() if entry.query_id]
    assert not any(query in text for query in ids)


# ---------------------------------------------------------------- ε over rounds


def test_spending_after_each_round_and_within_one_sum():
    mechanism = noisy_mean_rows(EnsembleLayout(50), 0.3, RowAnswer.VOTE)
    rounds = {"a": (mechanism.release(ROWS, positional_ids=True),) * ROUNDS}
    whole = {"a": (mechanism.release(ROWS * ROUNDS, positional_ids=True),)}
    marks = [ROWS * (n + 1) for n in range(ROUNDS)]
    one = lines(rounds, Adjacency.ZERO_OUT, 1e-5, [])
    other = lines(whole, Adjacency.ZERO_OUT, 1e-5, marks)
    assert [line.unit for line in one] == [Unit.RECORD, Unit.HOLDER]
    for first, second in zip(one, other, strict=True):
        assert first.rows == second.rows == tuple(marks)
        assert first.epsilon == pytest.approx(second.epsilon)
        assert list(first.epsilon) == sorted(first.epsilon)


def test_holders_that_gave_the_same_are_one_line():
    mechanism = noisy_mean_rows(EnsembleLayout(50, 2), 0.3, RowAnswer.VOTE)
    same, more = (mechanism.release(n, positional_ids=True) for n in (10, 20))
    found = lines({"a": (same,), "b": (same,), "c": (more,)}, Adjacency.ZERO_OUT, 1e-5, [])
    assert [line.label for line in found] == [
        "each of 2 holders, per record",
        "each of 2 holders, per holder",
        "c, per record",
        "c, per holder",
    ]
    label = TopKRandomizedResponse(0.1, 3).release(500, positional_ids=True)
    many = lines({"a": (label,)}, Adjacency.REPLACE, 1e-5, list(range(10, 500, 10)))
    assert all(len(line.rows) <= 11 for line in many)
    assert lines({"a": (same,)}, Adjacency.ADD_REMOVE, 1e-5, [])[0].unit is Unit.HOLDER


def test_what_each_kind_of_sum_took():
    given = {
        "a": (*sums("noisy-moments", 0.6, 0.8), *sums("noisy-loss-gradients", 1.0)),
        "b": sums("noisy-moments", 0.1),
    }
    assert asked_sums(given)
    moments, gradients = shares(given, Unit.RECORD, Adjacency.ZERO_OUT, 1e-5)
    assert moments.kind == "moments of the records' features, for the student"
    assert (moments.answers, gradients.answers) == (2, 1)
    # μ² adds: 0.36 + 0.64 is as much as 1.
    assert moments.share == pytest.approx(0.5)
    assert moments.epsilon == pytest.approx(gradients.epsilon)
    assert shares({"b": given["b"]}, Unit.RECORD, Adjacency.ZERO_OUT, 1e-5) == []
    assert shares(given, Unit.HOLDER, Adjacency.ZERO_OUT, 1e-5) == []
    rows = noisy_mean_rows(EnsembleLayout(50), 0.3, RowAnswer.VOTE).release(9, positional_ids=True)
    assert not asked_sums({"a": (rows,)})


def sums(mechanism, *mus):
    return tuple(
        MechanismRelease(mechanism, 1, {Unit.RECORD: {Adjacency.ZERO_OUT: Gaussian(mu)}})
        for mu in mus
    )


def test_a_run_on_sums_has_shares_and_no_curve_over_rows(told):
    given = (*sums("noisy-moments", 0.6), *sums("noisy-new-kind", 0.8))
    (told.path / "events.jsonl").write_text("".join(f"{json.dumps(r.to_json())}\n" for r in given))
    said = words_of(text_of(told))
    assert "What the budget went to" in said
    assert "moments of the records&#39; features, for the student 1 36.0 %" in said
    assert "noisy-new-kind 1 64.0 %" in said
    assert "ε while rows were answered" not in said


# ---------------------------------------------------------------- the first picture


def test_synthetic_images_come_first_beside_real_ones_of_a_benchmark(told):
    parsed = Page(text_of(told))
    first = parsed.all("img")[:2]
    assert re.fullmatch(r"\d+ synthetic images of class \d", first[0]["alt"] or "")
    assert re.fullmatch(r"5 real images of class \d", first[1]["alt"] or "")
    said = words_of(text_of(told))
    assert said.index("Synthetic images") < said.index("Privacy Sound ε")
    assert "held-out images of digits, a public benchmark" in said


def test_classes_have_their_names(tmp_path):
    names = [f"digit-{label}" for label in "abcdefghij"]
    counts = [[0] * 10 for _ in range(9)] + [[0] * 9 + [7]]
    confusion = {"counts": counts, "majority": 1.0}
    run = reported(tmp_path / "run", class_names=names, confusion=confusion)
    (run.path / "inversion.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    text = text_of(run)
    assert f"a column each, from the released networks alone: {', '.join(names)}." in text
    assert "real images of class digit-" in text
    assert words_of(text).count("digit-j") >= 3


def test_rows_of_the_picture():
    digits = load("digits").test
    images, labels = digits.images[:40], torch.arange(40) % 3
    names = ["a", "b", "c", "d"]
    found = class_rows(images, labels, names, None)
    assert [row.name for row in found] == ["a", "b", "c"]
    assert {row.synthetic.width for row in found} == {10 * 30 - 2}
    assert all(row.real is None for row in found)
    assert len(class_rows(images, labels, names * 30, digits)) <= 20


# ---------------------------------------------------------------- the command


def test_the_command(told, tmp_path, capsys):
    assert cli(["report", str(told.path)]) == 0
    assert (told.path / "report.html").exists()
    assert "report.html" in capsys.readouterr().out.replace("\n", "")
    assert cli(["report", str(told.path), "--out", str(tmp_path / "x.html")]) == 0
    other = reported(tmp_path / "other")
    both = [str(told.path), str(other.path)]
    assert cli(["report", *both]) == ConfigError.exit_code
    assert "Expected --out FILE" in capsys.readouterr().err
    assert cli(["report", *both, "--out", str(tmp_path / "both.html")]) == 0
    assert cli(["report", *both, "--out", "x", "--ledger", "y"]) == ConfigError.exit_code
    assert cli(["report", str(tmp_path)]) == StorageError.exit_code


def test_missing_libraries_are_named(told, monkeypatch):
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"jinja2 and matplotlib: pip install .*\[report\]"):
        write_report(told.path)


def test_a_comparison_names_no_data_of_a_user(own, tmp_path):
    text = write_comparison([own, reported(tmp_path / "a").path], tmp_path / "both.html")
    said = text.read_text(encoding="utf-8")
    assert OWN not in said
    assert str(own.parent) not in said
    assert OWN_DATA in said


def test_the_page_over_several_runs(tmp_path):
    runs = [
        reported(tmp_path / "a").path,
        reported(tmp_path / "b", method="fedavg", epsilon=None, private=False).path,
    ]
    text = write_comparison(runs, tmp_path / "both.html").read_text(encoding="utf-8")
    parsed, said = Page(text), words_of(text)
    assert "NOT PRIVATE: fedavg, digits." in said
    assert len(parsed.all("tr")) == 1 + len(compare(runs).groups)
    assert len(parsed.all("svg")) == 1
    assert "without guarantee: 65 %" in (parsed.all("div")[0]["aria-label"] or "")


# ---------------------------------------------------------------- what is not trusted


HOSTILE = (
    "</script><script>alert(1)</script> $\\frac{$ $x$ \" onload='x' \x00\x1b[2J\u202e {{7*7}} -->"
)


def test_no_name_adds_markup_formulas_or_control_characters(tmp_path):
    run = reported(
        tmp_path / "run",
        run=HOSTILE,
        method=HOSTILE,
        holders=3,
        trust=HOSTILE,
        accountant=HOSTILE,
        noise=HOSTILE,
        privacy=HOSTILE,
        published={"epsilon": 1.0, "reason": HOSTILE},
    )
    events = run.path / "events.jsonl"
    release = json.loads(events.read_text().splitlines()[0])
    holders = (HOSTILE, f"_{HOSTILE}", "$a$ $b$")
    told = [{"holder": holder, "release": release} for holder in holders for _ in range(2)]
    told.append({"holder": "other", "release": release})
    events.write_text("".join(f"{json.dumps(line)}\n" for line in told))
    add_audit(run.path)
    text = text_of(run)
    parsed = Page(text)
    assert parsed.all("script") == []
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert not set("\x00\x1b\u202e") & set(text)
    other = reported(tmp_path / "other", method=HOSTILE, privacy=HOSTILE)
    both = write_comparison([run.path, other.path], tmp_path / "both.html").read_text("utf-8")
    assert Page(both).all("script") == []
    table = compare([other.path]).to_markdown()
    assert "<" not in re.sub(r"\\.", "", table)
    assert "\x1b" not in table


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": "small"},
        {"unit": "patient"},
        {"sound": {"none": 1}},
        {"sound": [1]},
        {"published": 3},
        {"rows": "many"},
        {"curve": {"rows": [1], "accuracy": ["high"]}},
        {"accuracy": {"student": "good"}},
        {"noise_std": [1]},
        {"shards": {"a": "b"}},
    ],
    ids=str,
)
def test_a_result_with_values_of_other_types_is_called_damaged(tmp_path, wrong):
    run = reported(tmp_path / "run")
    path = run.path / "metrics.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(StorageError, match="damaged"):
        write_report(run.path)


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find()
    if program is None:
        pytest.skip("no Chromium on this machine; set FEDTRANSCRIBE_BROWSER to name one")
    with Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


_LOOK = """(() => {
  const tall = (e) => e.getBoundingClientRect();
  const wide = [...document.querySelectorAll('body *')]
    .filter((e) => !e.closest('svg') && tall(e).width > 0 && !e.closest('thead'))
    .filter((e) => tall(e).right > innerWidth + 1 || tall(e).left < -1)
    .map((e) => e.tagName + '.' + e.className);
  const body = getComputedStyle(document.body);
  return {
    wide, scroll: document.documentElement.scrollWidth, inner: innerWidth,
    mute: [...document.images].filter((i) => !i.alt.trim()).length,
    broken: [...document.images].filter((i) => i.naturalWidth === 0).length,
    pictures: document.images.length,
    unnamed: [...document.querySelectorAll('svg')]
      .filter((s) => !s.closest('[role=img][aria-label]')).length,
    small: [...document.querySelectorAll('p, td, th, li, dd, figcaption, caption')]
      .filter((e) => parseFloat(getComputedStyle(e).fontSize) < 12).length,
    letters: Math.min(...[...document.querySelectorAll('svg text')]
      .map((t) => tall(t).height).filter((h) => h > 0), 99),
    ink: body.color, paper: body.backgroundColor, title: document.title,
  };
})()"""


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
@pytest.mark.parametrize("kind", ["run", "own", "unguarded", "comparison"])
def test_pages_in_a_real_browser(browser, kind, width, height, tmp_path, request):
    if kind == "comparison":
        runs = [
            reported(tmp_path / "a").path,
            reported(tmp_path / "b", method="fedavg", epsilon=None, private=False).path,
        ]
        shown = write_comparison(runs, tmp_path / "page.html")
    elif kind == "own":
        shown = write_report(request.getfixturevalue("own"), tmp_path / "page.html")
    else:
        changes = {"private": False} if kind == "unguarded" else {}
        run = reported(tmp_path / "run", **changes)
        add_audit(run.path)
        shown = write_report(run.path, tmp_path / "page.html")
    browser.open(shown, width, height)
    found = browser.evaluate(_LOOK)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [shown.as_uri()]
    assert found["inner"] == width
    assert found["wide"] == []
    assert found["scroll"] <= width
    assert found["mute"] == found["broken"] == found["unnamed"] == found["small"] == 0
    assert found["letters"] >= 9
    assert (found["pictures"] > 0) is (kind != "comparison")
    assert found["ink"] == "rgb(29, 35, 41)"
    assert found["paper"] == "rgb(255, 255, 255)"
    assert "fedtranscribe" in found["title"]
    content = browser.screenshot(tmp_path / f"{kind}-{width}.png")
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">I", content[16:20])[0] == width
