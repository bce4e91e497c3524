"""What becomes of networks that holders have trained: files, samples, and how good these are.

One network lies in the run's folder, as `synthesize` would have left it. Of several, each lies in a
folder of its own under `holders/`, a whole run that can be sampled, evaluated and released, and
`samples.npz` has samples of them all.

Guarantee:
    Unit record, where no record is with two holders, as everywhere in a federation: a record moves
    one network alone, so that ε of all of them, and of the samples, is the largest of theirs. What
    is computed here is post-processing.
"""

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedtranscribe.config import FederationSettings
from fedtranscribe.data import DrawnFrom, ImageSet
from fedtranscribe.errors import FedtranscribeError, ProtocolError
from fedtranscribe.files import write_atomically
from fedtranscribe.models import pick_device
from fedtranscribe.models.diffusion import Synthesizer, load_synthesizer
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.questions.training_messages import TrainedNetwork
from fedtranscribe.results.figures import draw_images, figures_available
from fedtranscribe.results.parts import Accuracy, Federation, StatedGuarantee
from fedtranscribe.results.progress import silent
from fedtranscribe.results.result import Result
from fedtranscribe.results.run_directory import DENOISER, HOLDERS, RunDirectory
from fedtranscribe.runs.networks import expect_described, expect_shape, verified
from fedtranscribe.trainers.samples import ALL, chosen_labels, write_samples
from fedtranscribe.trainers.synthesize import Judge

SAMPLES = "samples.npz"

_GRID = 50
# Samples that a classifier learns from before it is tested.
_JUDGED = 3_000


@dataclass(frozen=True)
class Tested:
    """How samples are measured."""

    images: ImageSet | None  # held out; None measures nothing
    judge: Judge | None  # what measures on them; None measures nothing
    public: bool  # whether they belong to a public benchmark
    data_id: str | None  # of the records; a simulation knows it, a deployed server does not


def keep(
    settings: FederationSettings,
    run: RunDirectory,
    trained: TrainedNetwork,
    federation: Federation,
    tested: Tested,
) -> Result:
    """Write a holder's network and its result, once the network is the one that it describes."""
    assert federation.holder is not None
    expect_described(federation.holder, trained)
    guarantee = verified(settings, federation.holder, trained)
    model = _written(run, federation.holder, trained).to(pick_device(settings.device))
    run.write_events([{"holder": federation.holder, "release": dict(trained.release)}])
    judged = tested.images is not None and tested.judge is not None and _named(settings, trained)
    labels = chosen_labels(ALL, _JUDGED if judged else _GRID, model.classes, settings.seed)
    images = model.draw(labels, settings.seed)
    if figures_available():
        draw_images(images[:_GRID], labels[:_GRID], run.path / "images.png")
    scores = _scores(settings, images, labels, tested) if judged else {}
    run.write_scores(scores)
    result = Result(
        # Its shape as the holder says it, its cost as that follows; all else is this side's own.
        method=trained.facts.method,
        public_data=trained.facts.public_data,
        guarantee=guarantee,
        diffusion=trained.facts.diffusion,
        federation=federation,
        run=run.run_id,
        rows=1,
        data=settings.data,
        data_id=tested.data_id,
        class_names=_class_names(settings, trained, tested.images),
        accuracy=Accuracy.of(scores if tested.public else {}),
        settings=settings.model_dump(mode="json", exclude_none=True),
    )
    result.write(run.path)
    return result


def pool(
    settings: FederationSettings,
    run: RunDirectory,
    trained: dict[str, TrainedNetwork],
    payload: int,
    tested: Tested,
) -> Result:
    """Write the networks of several holders, samples of them all, and the result of the whole.

    Of each network as many samples are drawn as its holder has records, in proportion.
    """
    _expect_alike(trained)
    for holder, network in trained.items():
        expect_described(holder, network)
        verified(settings, holder, network)
    alone = replace(tested, images=None)
    results: list[Result] = []
    for number, (holder, network) in enumerate(trained.items()):
        own = _folder(settings, run.path / HOLDERS / str(number))
        federation = Federation(holders=1, holder=holder, bytes=len(network.network))
        results.append(keep(settings, own, network, federation, alone))
    run.write_events(
        [{"holder": h, "release": dict(network.release)} for h, network in trained.items()]
    )
    images, labels = _pooled(settings, run, list(trained.values()))
    names = results[0].class_names
    classes = next(iter(trained.values())).facts.diffusion.classes
    origin = DrawnFrom(run.run_id, tested.data_id)
    labelled = labels if classes else None
    write_samples(images, labelled, run.path / SAMPLES, classes, names, origin)
    if figures_available():
        draw_images(images[:_GRID], labels[:_GRID], run.path / "images.png", names)
    judged = _named(settings, next(iter(trained.values())))
    scores = _scores(settings, images, labels, tested) if judged else {}
    run.write_scores(scores)
    result = Result(
        method=results[0].method,
        public_data=results[0].public_data,
        guarantee=largest([each.guarantee for each in results]),
        federation=Federation(holders=len(results), bytes=payload),
        run=run.run_id,
        rows=len(results),
        data=settings.data,
        data_id=tested.data_id,
        class_names=names,
        accuracy=Accuracy.of(scores if tested.public else {}),
        settings=settings.model_dump(mode="json", exclude_none=True),
    )
    result.write(run.path)
    return result


def largest(guarantees: list[StatedGuarantee]) -> StatedGuarantee:
    """What holds for all of several trainings on records of which no two have one in common."""
    first = guarantees[0]
    if len({(g.unit, g.adjacency, g.delta) for g in guarantees}) > 1:
        raise ProtocolError("Expected trainings under one unit, adjacency and delta.")
    worst = max(guarantees, key=lambda g: math.inf if g.epsilon is None else g.epsilon)
    shared = [a for a in Adjacency if all(a in g.sound for g in guarantees)]
    unsafe = next((g for g in guarantees if not g.private), None)
    return first.model_copy(
        update={
            "epsilon": worst.epsilon,
            "accountant": worst.accountant,
            "sound": {a: _most([g.sound[a] for g in guarantees]) for a in shared},
            "published": None,
            "private": unsafe is None,
            "stamp": None if unsafe is None else unsafe.stamp,
            "caveats": tuple(dict.fromkeys(c for g in guarantees for c in g.caveats)),
        }
    )


# ---------------------------------------------------------------- small parts


def _most(epsilons: list[float | None]) -> float | None:
    """The largest; None, which is infinite, above all."""
    finite = [epsilon for epsilon in epsilons if epsilon is not None]
    return max(finite) if len(finite) == len(epsilons) else None


def _folder(settings: FederationSettings, path: Path) -> RunDirectory:
    """A holder's own, in the run's; one whose making was cut short is made anew."""
    if (path / "config.toml").exists():
        return RunDirectory.resume(path, settings)
    if path.exists():
        shutil.rmtree(path)
    return RunDirectory.create(path, settings)


def _written(run: RunDirectory, holder: str, trained: TrainedNetwork) -> Synthesizer:
    """The network, whose file stays in the run's folder if it is what its holder says."""
    path = run.path / DENOISER
    write_atomically(path, trained.network)
    try:
        model = load_synthesizer(path)
        expect_shape(holder, trained, model)
    except FedtranscribeError:
        path.unlink()
        raise
    return model


def _expect_alike(trained: dict[str, TrainedNetwork]) -> None:
    shapes = {
        holder: (d.channels, d.size, d.classes)
        for holder, d in ((h, network.facts.diffusion) for h, network in trained.items())
    }
    if len(set(shapes.values())) > 1:
        sizes = "; ".join(f"{h}: {s[0]}x{s[1]}x{s[1]}, {s[2]} classes" for h, s in shapes.items())
        raise ProtocolError(f"Expected networks of the same images and classes, got {sizes}.")


def _pooled(
    settings: FederationSettings, run: RunDirectory, trained: list[TrainedNetwork]
) -> tuple[Tensor, Tensor]:
    """Samples of all networks in a public order, uint8 [n, ch, s, s], and labels int64 [n]."""
    records = [network.facts.diffusion.records for network in trained]
    drawn: list[tuple[Tensor, Tensor]] = []
    for number, own in enumerate(records):
        path = run.path / HOLDERS / str(number) / DENOISER
        model: Synthesizer = load_synthesizer(path).to(pick_device(settings.device))
        share = max(1, round(_JUDGED * own / sum(records)))
        labels = chosen_labels(ALL, share, model.classes, settings.seed)
        drawn.append((model.draw(labels, settings.seed + number), labels))
    images, labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(settings.seed))
    return images[order], labels[order]


def _scores(
    settings: FederationSettings, images: Tensor, labels: Tensor, tested: Tested
) -> dict[str, float]:
    """What a classifier that learned from samples knows of held-out images."""
    if tested.images is None or tested.judge is None:
        return {}
    device = pick_device(settings.device)
    score = tested.judge(images, labels, tested.images, device, silent)
    return {} if score is None else {"downstream": score}


def _class_names(
    settings: FederationSettings, trained: TrainedNetwork, test: ImageSet | None
) -> tuple[str, ...] | None:
    """What the network's labels are called."""
    return test.class_names if test is not None and _named(settings, trained) else None


def _named(settings: FederationSettings, trained: TrainedNetwork) -> bool:
    """Whether images come with the records' labels, and not with clusters or none."""
    return trained.facts.diffusion.classes > 0 and settings.training.labels == "own"
