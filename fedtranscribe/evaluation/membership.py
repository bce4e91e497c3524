"""Membership inference: were these records used? Asked of what was released.

A student is a function of private answers, and a diffusion model is one itself, so by the data
processing inequality no attack on them can find more than the ε of the run allows. Members are the
run's own private records, the others its held-out ones. Everything found here rests on private
records, so it stays under `private/`, on benchmarks too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedtranscribe.data import DataSplit, ImageSet
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.audit_bounds import (
    Numbers,
    best_guesses,
    clopper_pearson,
    fair_coins,
    mean_rank,
)
from fedtranscribe.evaluation.findings import Claim, Finding, proved
from fedtranscribe.methods.pretraining import train_classifier
from fedtranscribe.models import Classifier, build
from fedtranscribe.models.diffusion import Synthesizer, to_signed
from fedtranscribe.noise.sources import BitSource

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
_BATCH = 250
_TRAINING_BATCH = 64
# Of a diffusion model: where its loss is looked at.
_STEPS = 9
_SPREAD = 1e-6

EXCHANGEABLE = (
    "The bound assumes that the held-out records were chosen at random. If train and test part "
    "were collected separately, an attack may find that difference instead."
)


@dataclass(frozen=True, eq=False)
class Suspects:
    """Members and other records, which an attack has to separate.

    Guarantee
        A private and a held-out record make a pair, and a fair coin of the pair's own says which of
        the two is the suspect. Where chance decided which record of a pair was held out, a suspect
        tells nothing of its coin. Had the coin fallen the other way, the suspect's place in the
        training would have gone to another record like it, or the other way round: one record is
        replaced. So the one-run theorem (`bounds.one_run_p_value`) holds with the ε of `replace`.
    """

    images: Tensor  # uint8 [m, ch, s, s]
    labels: Tensor  # int64 [m], or [m, classes] of 0 and 1
    used: NDArray[np.bool_]  # which are members: the coins, bool [m]. No attack may look at them.
    classes: int  # of the task

    @classmethod
    def of(
        cls,
        split: DataSplit,
        most: int,
        rng: np.random.Generator,
        coins: BitSource | None = None,
    ) -> "Suspects":
        """One of each of at most so many pairs.

        Args:
            split: gives private and held-out records.
            most: pairs, and so suspects.
            rng: public; picks the pairs.
            coins: OS entropy unless a test seeds it.
        """
        if most < 2:
            raise ConfigError(f"Expected records={most} >= 2.")
        m = min(most, len(split.train), len(split.test))
        (inside, own), (outside, other) = (_some(p, m, rng) for p in (split.train, split.test))
        used = fair_coins(m, coins)
        heads = torch.from_numpy(used)
        images = torch.where(heads[:, None, None, None], inside, outside)
        labels = torch.where(heads if own.ndim == 1 else heads[:, None], own, other)
        return cls(images, labels, used, split.train.classes)


def by_loss(
    model: Classifier | Synthesizer, suspects: Suspects, claim: Claim, confidence: float
) -> Finding:
    """The plainest attack: a record that the model knows better was used."""
    scores = familiarity(model, suspects.images, suspects.labels)
    words = f"{clue_of(model).capitalize()} distinguished members from other records"
    return judge("loss", words, scores, suspects.used, claim, confidence)


def by_references(
    student: Classifier,
    suspects: Suspects,
    claim: Claim,
    confidence: float,
    *,
    references: int,
    steps: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Finding:
    """Offline likelihood-ratio attack: how much surer than networks that never saw the record?

    References of the student's own architecture are trained on random halves of the suspects, in
    pairs on complements, so that each record is unknown to exactly half of them. What the student
    adds over their mean, in units of their spread, is the score. Source: Carlini, Chien, Nasr,
    Song, Terzis and Tramèr 2022, their offline variant.

    Args:
        student: the released one.
        suspects: to tell apart.
        claim: what is tested.
        confidence: of the bound.
        references: how many networks, even; some seconds each on small images.
        steps: of each.
        seed: public randomness of halves and references.
        progress: called with (references done, references in all).
    """
    if references < 2 or references % 2:
        raise ConfigError(f"Expected references={references} even and >= 2.")
    rng, count = np.random.default_rng(seed), len(suspects.used)
    unknown = np.zeros((references, count), dtype=bool)
    seen = np.zeros((references, count))
    for number in range(references):
        if number % 2 == 0:
            unknown[number, rng.permutation(count)[: count // 2]] = True
        else:
            unknown[number] = ~unknown[number - 1]
        rows = torch.from_numpy(np.flatnonzero(~unknown[number]))
        network = _reference(
            student, suspects.images[rows], suspects.labels[rows], steps, seed + number
        )
        seen[number] = confidences(network, suspects.images, suspects.labels)
        progress(number + 1, references)
    out = np.where(unknown, seen, np.nan)
    centre = np.nanmean(out, axis=0)
    # A spread of a few references per record is mostly chance: one for all is steadier.
    spread = float(np.sqrt(np.nanmean((out - centre) ** 2))) + _SPREAD
    scores = (confidences(student, suspects.images, suspects.labels) - centre) / spread
    words = (
        f"The student's confidence, compared with that of {references} networks that had not seen "
        "the record, distinguished members from other records"
    )
    return judge("reference", words, scores, suspects.used, claim, confidence)


def by_samples(synthetic: Tensor, suspects: Suspects, claim: Claim, confidence: float) -> Finding:
    """Attack on the generator: a record that has a closer synthetic image was used.

    Args:
        synthetic: uint8 [k, ch, s, s].
        suspects: to tell apart.
        claim: what is tested.
        confidence: of the bound.
    """
    made = synthetic.flatten(1).float() / 255
    parts = (suspects.images.flatten(1).float() / 255).split(_BATCH)
    closest = torch.cat([torch.cdist(part, made).amin(1) for part in parts])
    words = (
        f"The distance to the nearest of {len(synthetic):,} synthetic images "
        "distinguished members from other records"
    )
    return judge("generator", words, -closest.numpy(), suspects.used, claim, confidence)


def judge(
    attack: str,
    words: str,
    scores: Numbers,
    used: NDArray[np.bool_],
    claim: Claim,
    confidence: float,
) -> Finding:
    """What a score is worth, in the terms of the field, and as a bound on ε.

    Args:
        attack: its name.
        words: what the score is.
        scores: higher for members, [m].
        used: who is one, [m].
        claim: what is tested.
        confidence: of the bound and, each by itself, of the intervals.
    """
    scores = np.asarray(scores, dtype=np.float64)
    members, others = scores[used], scores[~used]
    lower, guesses, right = best_guesses(scores, used, claim.delta, confidence)
    area = mean_rank(members, others)
    figures: dict[str, Any] = {
        "records": len(scores),
        "auc": area,
        "auc_interval": _area_interval(members, others, confidence),
        "true_positive_rate_at": {
            f"{rate:g}": _found_at(rate, members, others, confidence)
            for rate in FALSE_POSITIVE_RATES
            if len(members) and rate * len(others) >= 1
        },
        "guesses": guesses,
        "right": right,
        "assumption": EXCHANGEABLE,
    }
    sentence = f"{words} with an AUC of {area:.3f} (0.5 is luck), {proved(lower)}."
    return Finding(attack, claim, lower, confidence, sentence, figures)


def familiarity(model: Classifier | Synthesizer, images: Tensor, labels: Tensor) -> Numbers:
    """What a model's own loss says of each record, float64 [n]: higher for what it knows better.

    Args:
        model: a student, or a diffusion model.
        images: uint8 [n, ch, s, s].
        labels: int64 [n], or [n, classes] of 0 and 1.
    """
    if isinstance(model, Synthesizer):
        return -denoising_losses(model, images, labels)
    return confidences(model, images, labels)


def clue_of(model: Classifier | Synthesizer) -> str:
    """What `familiarity` rests on, in words."""
    if isinstance(model, Synthesizer):
        return "the diffusion model's loss on a record"
    return "the student's confidence in the true class"


def denoising_losses(model: Synthesizer, images: Tensor, labels: Tensor) -> Numbers:
    """Mean squared error of the noise that a diffusion model guesses, float64 [n].

    Over a few steps spread evenly, with one noise for all records, so that they are compared by
    themselves alone. Source: the loss attack on diffusion models of Carlini, Hayes, Nasr,
    Jagielski, Sehwag, Tramèr, Balle, Ippolito and Wallace 2023, section 5.

    Args:
        model: trained.
        images: uint8 [n, ch, s, s].
        labels: int64 [n]; a model without labels takes no notice.
    """
    device = next(model.denoiser.parameters()).device
    known = labels if model.conditional else torch.full_like(labels, model.denoiser.null_label)
    rng = torch.Generator().manual_seed(0)
    total = np.zeros(len(images))
    for number in range(1, _STEPS + 1):
        step = number * model.schedule.steps // (_STEPS + 1)
        noise = torch.randn(1, *images.shape[1:], generator=rng)
        signal = float(model.schedule.alpha_bar[step])
        found = []
        for part, asked in zip(images.split(_BATCH), known.split(_BATCH), strict=True):
            noisy = signal**0.5 * to_signed(part) + (1 - signal) ** 0.5 * noise
            steps = torch.full_like(asked, step).to(device)
            with torch.no_grad():
                guess = model.denoiser(noisy.to(device), steps, asked.to(device)).cpu()
            found.append((guess - noise).double().square().flatten(1).mean(1))
        total += torch.cat(found).numpy()
    return total / _STEPS


def confidences(network: Classifier, images: Tensor, labels: Tensor) -> Numbers:
    """log p/(1−p) of the true class, float64 [n]: a loss that is close to normal.

    Args:
        network: in evaluation mode afterwards.
        images: uint8 [n, ch, s, s].
        labels: int64 [n].
    """
    device = next(network.parameters()).device
    network.eval()
    found = []
    with torch.no_grad():
        for part, true in zip(images.split(_BATCH), labels.split(_BATCH), strict=True):
            logits = network(part.to(device).float() / 255).double().cpu()
            if network.multilabel:
                found.append(
                    -F.binary_cross_entropy_with_logits(
                        logits, true.double(), reduction="none"
                    ).sum(1)
                )
                continue
            own = logits.gather(1, true[:, None]).squeeze(1)
            rest = logits.scatter(1, true[:, None], -torch.inf).logsumexp(1)
            found.append(own - rest)
    return torch.cat(found).numpy()


def _some(part: ImageSet, n: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(rng.permutation(len(part))[:n])
    return part.images[rows], part.labels[rows]


def _reference(
    student: Classifier, images: Tensor, labels: Tensor, steps: int, seed: int
) -> Classifier:
    device = next(student.parameters()).device
    network = build(
        student.architecture, student.classes, student.channels, student.size, seed=seed
    ).to(device)
    rng = torch.Generator().manual_seed(seed)
    train_classifier(network, images, labels, steps, rng, _TRAINING_BATCH)
    return network


def _area_interval(members: Numbers, others: Numbers, confidence: float) -> tuple[float, float]:
    """Of the AUC, from disjoint pairs: those are independent, so Clopper-Pearson is exact."""
    n = min(len(members), len(others))
    if n == 0:
        return 0.0, 1.0
    wins = int((members[:n] > others[:n]).sum())
    ties = int((members[:n] == others[:n]).sum())
    return clopper_pearson(wins + ties // 2, n, confidence)


def _found_at(
    rate: float, members: Numbers, others: Numbers, confidence: float
) -> dict[str, float]:
    """True positive rate where so many of the others are accused."""
    threshold = np.sort(others)[len(others) - 1 - int(rate * len(others))]
    hits = int((members > threshold).sum())
    low, high = clopper_pearson(hits, len(members), confidence)
    return {"rate": hits / len(members), "low": low, "high": high}
