"""The model card: a statement in words, around it what a user of the networks needs.

Its privacy section is a function of the statement alone, so that a check can ask for it word by
word; no other place of the card may state an ε, but for the header that programs read. Texts of
the statement are escaped: none of them can end a table, open a comment or add a line.
"""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtranscribe.models import Generator
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.releases.describe import is_public
from fedtranscribe.releases.recomputed import agree
from fedtranscribe.releases.statement import (
    LOUD,
    Choice,
    LedgerTotal,
    PrivacyStatement,
    PublicWeights,
    StatedTeachers,
)
from fedtranscribe.results.parts import OWN_LABELS, Diffusion
from fedtranscribe.results.result import Result
from fedtranscribe.runs.finished import FinishedRun
from fedtranscribe.text import counted, markdown

_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_UNITS = {
    Unit.RECORD: "one private image and its label (all images of one id, where ids repeat)",
    Unit.HOLDER: "one data holder: all of its records and all of its teachers",
}
_ADJACENCIES = {
    Adjacency.ZERO_OUT: "the unit is replaced by an empty one",
    Adjacency.REPLACE: "the unit is replaced by any other one",
    Adjacency.ADD_REMOVE: "the unit is added or removed, and nothing else changes",
}
# Teachers, and all that touched them, are no public matter: not even on a benchmark.
_TEMPLATES = {
    "student": "student",
    "public_set_alone": "public set alone",
    "downstream": "CNN that learned from synthetic images alone",
}
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+.!|~-])")
_FIGURE = re.compile(r"(?:ε|epsilon)[^0-9\n]{0,12}([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", re.I)


def render_card(run: FinishedRun, statement: PrivacyStatement, onnx: Sequence[str]) -> str:
    """The card of a release that has these ONNX files."""
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        library_name="fedtranscribe",
        pipeline_tag="image-classification" if run.student else "unconditional-image-generation",
        tags=["differential-privacy", "model-transcription", "synthetic-data"],
        fedtranscribe={
            "epsilon": statement.epsilon,
            "delta": statement.delta,
            "unit": statement.unit.value,
            "adjacency": statement.adjacency.value,
            "private": statement.stamp is None,
        },
    )
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE.read_text(encoding="utf-8"),
        **_facts(run),
        stamp=_stamp(statement),
        title=_title(run, statement),
        method=statement.method,
        version=statement.fedtranscribe,
        data=markdown(statement.data),
        public_data=markdown(statement.public_data or "none"),
        privacy=privacy_section(statement),
        class_names=class_section(statement),
        threshold=threshold_section(statement),
        onnx=onnx,
        accuracy=_accuracy(run),
        confusion=run.result.confusion if is_public(run) else None,
        findings=run.result.findings if is_public(run) else None,
        names=_names(run),
    )
    return f"{str(card).rstrip()}\n"


def complaints(card: str, statement: PrivacyStatement) -> list[str]:
    """What a card says otherwise than its statement; empty if nothing."""
    found, rest = [], card
    parts = {
        "privacy section": privacy_section(statement),
        "stamp": _stamp(statement),
        "list of classes": class_section(statement),
        "threshold": threshold_section(statement),
    }
    for name, words in parts.items():
        if words is not None:
            if words not in rest:
                found.append(f"its {name} is not what privacy.json says")
            rest = rest.replace(words, "", 1)
    if statement.stamp is None and LOUD in rest:
        found.append("it carries a stamp that privacy.json does not have")
    for figure in _FIGURE.findall(rest):
        if not agree(statement.epsilon, float(figure)):
            found.append(f"it states ε = {figure}, privacy.json {_figure(statement.epsilon)}")
    return found


def privacy_section(statement: PrivacyStatement) -> str:
    """The statement in words, as Markdown."""
    accountant = markdown(statement.accountant or "none")
    parts = [
        "## Privacy",
        f"**ε = {_figure(statement.epsilon)}** at δ = {statement.delta:g}, for unit "
        f"`{statement.unit.value}` under adjacency `{statement.adjacency.value}` "
        f"(accountant: {accountant}).",
        f"- `{statement.unit.value}`: {_UNITS[statement.unit]}\n"
        f"- `{statement.adjacency.value}`: {_ADJACENCIES[statement.adjacency]}",
        "\n".join(
            ["| | |", "| --- | --- |", *(f"| {name} | {v} |" for name, v in _rows(statement))]
        ),
        "Choices that depend, or may depend, on private data:",
        "\n".join(f"- {_choice(choice)}" for choice in statement.data_dependent_choices)
        or "- none is known",
    ]
    if statement.public_weights is not None:
        parts.append(_vouched(statement.public_weights))
    if statement.declared_teachers is not None:
        parts += _declared(statement.declared_teachers)
    if statement.published is not None:
        parts.append(
            f"Why the published figure is no guarantee: {markdown(statement.published.reason)}"
        )
    parts.append(
        "`privacy.json` holds the same for programs, with every released answer as the "
        "accountant counts it; the holder's held-out records are not covered by this guarantee."
    )
    return "\n\n".join(parts)


def class_section(statement: PrivacyStatement) -> str | None:
    """The classes in order, as Markdown; None where nobody named them."""
    if statement.class_names is None:
        return None
    return "- Classes, from 0: " + ", ".join(map(_escaped, statement.class_names))


def threshold_section(statement: PrivacyStatement) -> str | None:
    """The threshold, as Markdown; None where there is none."""
    stated = statement.threshold
    if stated is None:
        return None
    if isinstance(stated.probability, tuple):
        each = ", ".join(f"{value:.6g}" for value in stated.probability)
        words = (
            f"Thresholds: `release.predict` names classes, in order, from probabilities of {each}"
        )
    else:
        words = (
            "Threshold: `release.predict` names the second class from a probability of "
            f"{stated.probability:.6g}"
        )
    return (
        f"- {words} on. Chosen on {_escaped(stated.chosen_on)}, which the publisher declares to be "
        "public"
    )


def _escaped(text: str) -> str:
    """Names come from outside: none of them may become markup."""
    return _MARKUP.sub(r"\\\1", html.escape(text, quote=False))


def _rows(statement: PrivacyStatement) -> list[tuple[str, str]]:
    unit, adjacency = statement.unit.value, statement.adjacency.value
    rows = [(f"ε, sound, {unit}, {a.value}", _figure(e)) for a, e in statement.sound.items()]
    rows += [
        (f"ε, sound, {u.value}, {adjacency}", _figure(e))
        for u, e in statement.units.items()
        if u is not statement.unit
    ]
    if statement.published is not None:
        use = "chose the noise" if statement.published.used_for_calibration else "was not used"
        value = _figure(statement.published.epsilon)
        rows.append(("published formula, NO guarantee", f"{value} ({use})"))
    if statement.ledger is not None:
        rows += _ledger_rows(statement.ledger)
    noise = statement.noise_mode
    if statement.noise_std is not None:
        noise += f", standard deviation {statement.noise_std:.6g}"
    return [
        *rows,
        ("noise", noise),
        ("who had to be trusted", markdown(statement.trust)),
        ("answers", _answers(statement)),
        ("data holders, teachers", f"{statement.holders:,}, {statement.teachers or 'none'}"),
        ("several holders", statement.composition),
        (
            "audits",
            f"{len(statement.audits)}; see privacy.json" if statement.audits else "none yet",
        ),
    ]


def _ledger_rows(ledger: LedgerTotal) -> list[tuple[str, str]]:
    limit, booked = ledger.limit, ledger.booked
    bound = "none: the ledger answered without a fixed limit"
    if limit is not None:
        bound = (
            f"{_figure(limit.epsilon)} ({limit.unit.value}, {limit.adjacency.value}, "
            f"δ = {limit.delta:g}; the highest limit that the ledger ever had)"
        )
    total = "no figure for this unit and adjacency" if booked is None else f"{booked:.6g}"
    by = markdown(ledger.accountant)
    return [
        ("ε of all runs on these data", bound),
        ("booked by all runs on these data, when this one ended", f"{total} ({by})"),
    ]


def _vouched(used: PublicWeights) -> str:
    """On whose word the features count as public."""
    return (
        f"The student is linear in features of `{used.network}` at {used.side} pixels, whose "
        f"weights have SHA-256 `{used.sha256}`. {_escaped(used.declared_by)} declares that these "
        "weights never saw the private records. Where that is wrong, no ε above holds."
    )


def _declared(teachers: StatedTeachers) -> list[str]:
    """On whose word the guarantee of teachers rests."""
    shards = [
        f"The teachers of {_escaped(holder)} were trained elsewhere. {_escaped(by)} declares that "
        "they learned from disjoint shards, and that no record's shard depended on another record. "
        "Where that is wrong, no ε above holds."
        for holder, by in teachers.shards.items()
    ]
    weights = [
        f"The teachers of {_escaped(holder)} began with weights that were trained on other data. "
        f"{_escaped(by)} declares that these weights never saw the private records. Where that is "
        "wrong, no ε above holds."
        for holder, by in teachers.weights.items()
    ]
    return shards + weights


def _answers(statement: PrivacyStatement) -> str:
    if statement.answers is None:
        return "one trained network" if statement.rows == 1 else f"{statement.rows:,} rows"
    if statement.method == statement.answers:  # moments: sums over all records, no rows
        return f"{counted(statement.rows, 'noisy sum')} over all records (`{statement.answers}`)"
    return f"{counted(statement.rows, 'row')} of kind `{statement.answers}`"


def _choice(choice: Choice) -> str:
    words = markdown(choice.choice)
    if not choice.stated:
        return f"{words}: the publisher says that nothing was chosen by it"
    return f"{words}: {'charged' if choice.charged else 'NOT charged'}"


def _figure(epsilon: float | None) -> str:
    return "infinite: no guarantee" if epsilon is None else f"{epsilon:.6g}"


def _stamp(statement: PrivacyStatement) -> str | None:
    return None if statement.stamp is None else markdown(statement.stamp)


def _title(run: FinishedRun, statement: PrivacyStatement) -> str:
    what = "diffusion model" if run.student is None else "student"
    return f"A {what}" if statement.stamp is not None else f"A differentially private {what}"


def _facts(run: FinishedRun) -> dict[str, Any]:
    student, generator = run.student, run.generator
    if isinstance(generator, Synthesizer):
        denoiser, sampling = generator.denoiser, generator.sampling
        trained = run.result.diffusion
        return {
            "diffusion": True,
            "architecture": denoiser.size_name.value,
            "classes": generator.classes,
            "channels": denoiser.channels,
            "size": denoiser.size,
            "parameters": sum(p.numel() for p in denoiser.parameters()),
            "time_steps": generator.schedule.steps,
            "labels": markdown(OWN_LABELS if trained is None else trained.labels),
            "private_start": trained and _private_start(trained),
            "sampling": f"DDIM, {sampling.steps} steps, eta {sampling.eta:g}, "
            f"guidance {sampling.guidance:g}",
        }
    assert student is not None
    return {
        "diffusion": False,
        "architecture": student.architecture,
        "classes": student.classes,
        "multilabel": student.multilabel,
        "channels": student.channels,
        "size": student.size,
        "parameters": sum(p.numel() for p in student.parameters()),
        "confidence": _confidence(run.result),
        "generator": generator is not None,
        "mixture": _mixture(generator) if isinstance(generator, GaussianMixture) else None,
        "sharpened": isinstance(generator, GaussianMixture) and generator.sharpener is not None,
        "generator_inputs": generator and _inputs(generator),
    }


def _private_start(trained: Diffusion) -> str | None:
    """The parts of what such a training cost."""
    start = trained.private_start
    if start is None:
        return None
    return (
        f"{start.components} Gaussians per class from noisy sums over the records "
        f"(ε = {start.epsilon_of_start:.4g} alone); the network was pre-trained on "
        f"{start.samples:,} samples of them, then trained on the records "
        f"(ε = {start.epsilon_of_training:.4g} alone)"
    )


def _confidence(result: Result) -> str:
    """How far the student's probabilities may be trusted."""
    if result.logit_scale is None:
        return "not calibrated: its probabilities only rank the classes"
    return (
        f"calibrated on average over the private records: the noisy gradients, which the student "
        f"was learned from, set the scale of its logits (times {result.logit_scale:.2f})"
    )


def _mixture(generator: GaussianMixture) -> str:
    gaussians = f"{len(generator.counts)} Gaussians on {generator.axes.shape[1]} axes"
    if generator.sharpener is None:
        return (
            f"{gaussians}, each of one class; its file holds counts, means, covariances and "
            "texture, and no network"
        )
    weights = sum(p.numel() for p in generator.sharpener.parameters())
    return (
        f"{gaussians}, each of one class; a network of {weights:,} weights, trained on the "
        "mixture's own images, gives them the features of their classes; its file holds both"
    )


def _inputs(generator: Generator | GaussianMixture) -> str:
    """What a generator's ONNX is given."""
    if isinstance(generator, Generator):
        return f"standard normal `latent`, float32 [n, {generator.latent_dim}]"
    noise = ", ".join(map(str, generator.noise_shape))
    return (
        f"`components`, int64 [n] from 0 to {len(generator.counts) - 1}, and standard normal "
        f"float32 `steps` [n, {generator.axes.shape[1]}] and `noise` [n, {noise}]"
    )


def _names(run: FinishedRun) -> list[str]:
    """What the classes are called in tables."""
    numbers = range(run.student.classes if run.student is not None else 0)
    return [markdown(name) for name in run.result.class_names or map(str, numbers)]


def _accuracy(run: FinishedRun) -> dict[str, float]:
    """On a public benchmark's test part, and only there."""
    if not is_public(run) or run.result.accuracy is None:
        return {}
    scores = run.result.accuracy.to_json()
    return {name: scores[key] for key, name in _TEMPLATES.items() if key in scores}
