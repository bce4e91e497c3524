"""The part that every run shares: networks, method, rounds, and what is kept of the result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from fedtranscribe.config import RoundSettings, StudentSettings
from fedtranscribe.data import ImageSet
from fedtranscribe.data.imageset import NO_LABEL, groups_of
from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.descent import DescentMethod
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.methods.method import Method
from fedtranscribe.methods.mixture import MixtureMethod
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.methods.questions import WithQuestions
from fedtranscribe.methods.sharpening import ClassMomentsMethod
from fedtranscribe.methods.sums import SumsMethod
from fedtranscribe.methods.sums_then_teachers import SumsThenTeachers, TeachersAfterMoments
from fedtranscribe.models import pick_device, save_network
from fedtranscribe.models.fixed_features import features_for
from fedtranscribe.models.generator import GENERATED
from fedtranscribe.models.inference import RepeatedTest, confusion_of, findings_of, labelled_samples
from fedtranscribe.models.mixture import GaussianMixture
from fedtranscribe.noise.sources import NoiseSource
from fedtranscribe.privacy.units import Unit
from fedtranscribe.results.decisions import Confusion, Findings
from fedtranscribe.results.figures import draw_curve, draw_images, figures_available
from fedtranscribe.results.parts import Accuracy, DeclaredTeachers, MixtureFacts
from fedtranscribe.results.progress import Progress, Report, ignore, silent
from fedtranscribe.results.run_directory import GENERATOR, STUDENT, RunDirectory
from fedtranscribe.rounds.plan import Plan
from fedtranscribe.rounds.server import Events, Outcome, Server
from fedtranscribe.rounds.transport import Transport
from fedtranscribe.runs.student_side import StudentSide, build_student_side

S = TypeVar("S", bound=StudentSettings)

# Images of a figure, and out of how many they are picked.
_GRID, _POOL = 50, 200


@dataclass(frozen=True)
class HeldOut:
    """Images that a student is tested on."""

    images: ImageSet  # held-out or public
    # whether accuracy on them may be told; accuracy on anybody's own records is measured once, at
    # the end, and stays under `private/`
    public: bool


@dataclass(frozen=True)
class Learned:
    """What the rounds of a run have led to."""

    outcome: Outcome  # of the rounds
    accuracy: Accuracy | None  # what may be shown of it; None where nothing may
    confusion: Confusion | None  # what may be shown of it; None where nothing may
    findings: Findings | None  # the same, where images may have several labels
    method: Method[Any]  # the student side; its student is finished

    @property
    def logit_scale(self) -> float | None:
        """What the student's logits were scaled by; None where no answer says how sure it is."""
        return self.method.logit_scale if isinstance(self.method, SumsMethod) else None


def makes_generator(settings: StudentSettings, plan: Plan) -> bool:
    """Whether a run ends with a generator: a mixture or a network."""
    return settings.with_generator and (plan.teachers is not None or not plan.shows_nothing)


def needs_network(settings: StudentSettings, plan: Plan) -> bool:
    """Whether a generator has to be trained: where no mixture stands in for it, or for teachers."""
    return plan.teachers is not None or (makes_generator(settings, plan) and not plan.mixture)


def expect_generator(settings: StudentSettings, plan: Plan) -> None:
    """Refuse to do without a generator where one is needed, and one of images it cannot make."""
    if not settings.with_generator and plan.teachers is not None:
        raise ConfigError(
            "Expected with_generator=true where teachers are asked: it makes the images that they "
            "are asked about. Only a run on moments can do without (--no-generator)."
        )
    size = plan.facts.size
    if size in GENERATED or not needs_network(settings, plan):
        return
    sides = ", ".join(map(str, GENERATED))
    if plan.teachers is not None:
        raise ConfigError(
            f"Expected images of {sides} pixels a side where teachers are asked, got {size}: a "
            "network makes the images that they are asked about. Resize them (--image-size 64 "
            "for a folder), or ask sums over records alone, for images of any size."
        )
    raise ConfigError(
        f"Expected images of {sides} pixels a side for a generator without a mixture, got {size}; "
        "leave the generator out (--no-generator), or allow the mixture a share."
    )


def with_student(settings: S, plan: Plan) -> S:
    """The settings with the student that a plan's sums set, where it asks for any."""
    if not plan.starts:
        return settings
    student = features_for(settings.student, plan.facts.channels)
    return settings.model_copy(update={"student": student})


def learn(
    settings: StudentSettings,
    rounds: RoundSettings,
    plan: Plan,
    transport: Transport,
    run: RunDirectory,
    *,
    public: ImageSet | None,
    test: HeldOut | None,
    others: Callable[[], dict[str, float]] = dict,
    progress: Progress = silent,
    report: Report = ignore,
    events: Events | None = None,
    noise: NoiseSource | None = None,
) -> Learned:
    """Carry out a plan: ask, learn, and write the student and its accuracies.

    Args:
        settings: of the student side.
        rounds: how the rounds go on.
        plan: of the run.
        transport: reaches the holders.
        run: its folder; an interrupted run goes on from its checkpoint.
        public: images that the student starts from, or None.
        test: what it is tested on, or None.
        others: measures what else may be compared with the student, at the end.
        progress: shows long work that nobody is asked in.
        report: receives a line per round.
        events: what has been booked, see `Server`.
        noise: the server's own, for `central`; OS entropy unless a test says otherwise.
    """
    stored, facts = run.load_checkpoint(), plan.facts
    if test is not None and test.images.multilabel != facts.multilabel:
        kind = "several labels" if facts.multilabel else "one label"
        raise ConfigError(
            f"Expected held-out images with {kind} each, as the holders have; "
            f"{test.images.name!r} has others. Name another data set."
        )
    if test is not None and test.images.classes > facts.classes:
        raise ConfigError(
            f"Expected held-out images of at most {facts.classes} classes, as the holders have, "
            f"got {test.images.classes} in {test.images.name!r}; name another data set."
        )
    settings = with_student(settings, plan)
    side = build_student_side(
        settings,
        facts.classes,
        facts.channels,
        facts.size,
        public,
        pick_device(settings.device),
        progress,
        fresh=stored is None,
        pretrain=not plan.starts,
        products=plan.products,
    )
    side.student.multilabel = facts.multilabel
    method = _method(settings, plan, side, run, public, progress)

    testing = None if test is None else RepeatedTest(side.student, test.images)
    # A student whose head comes from the answers alone is at chance before them.
    if testing is not None and stored is None and not plan.starts:
        run.write_scores({"public_set_alone": testing.accuracy()})
    is_public = test is not None and test.public
    questions = [part.kind for part in plan.parts if part.outside]
    asked = WithQuestions(method, questions, len(plan.of_method), facts, run.run_id)
    server = Server(
        cast("Method[Any]", asked) if questions else method,
        plan,
        transport,
        rounds,
        run,
        Unit(settings.unit),
        evaluate=testing.accuracy if testing is not None and is_public else None,
        report=report,
        events=events,
        noise=noise,
    )
    outcome, confusion, findings = server.serve(stored, progress), None, None
    if test is not None and testing is not None:
        run.write_scores(others() | run.read_scores() | {"student": testing.accuracy()})
        logits, labels = testing.logits(), test.images.labels
        if facts.multilabel:
            findings = findings_of(logits, labels)
            run.write_confusion(findings)
        else:
            confusion = confusion_of(logits, labels, ordinal=settings.task == "ordinal")
            run.write_confusion(confusion)
    if questions:
        run.write_answers(asked.answers)
    save_network(side.student, run.path / STUDENT)
    scored = Accuracy.of(run.read_scores()) if is_public else None
    if outcome.curve[0] and figures_available():
        scores = {} if scored is None else scored.to_json()
        _draw_curve(run, outcome, scores, "sums" if plan.teachers is None else "rows")
    if not is_public:
        confusion = findings = None
    return Learned(outcome, scored, confusion, findings, method)


def finish_generator(
    method: Method[Any],
    run: RunDirectory,
    progress: Progress = silent,
    names: Sequence[str] | None = None,
) -> None:
    """Train what a generator still lacks, and write it with some of its images: free.

    A mixture's images are shown at once, before they are sharpened.
    """
    if isinstance(method.generator, GaussianMixture):
        _draw_samples(method, run, names)
    method.finish_generator(progress, run.generator_state)
    if method.generator is not None:
        save_network(method.generator, run.path / GENERATOR)
        _draw_samples(method, run, names)


def _draw_samples(method: Method[Any], run: RunDirectory, names: Sequence[str] | None) -> None:
    generator = method.generator
    if generator is not None and figures_available():
        images, found = labelled_samples(generator, method.student, _POOL, seed=0)
        labels = groups_of(found)
        if method.student.multilabel and names is not None:
            names = (NO_LABEL, *names)
        grid_labels = _class_by_class(labels, _GRID)
        draw_images(images[grid_labels], labels[grid_labels], run.path / "images.png", names)


def _class_by_class(labels: Tensor, count: int) -> Tensor:
    """Where to find so many labels, of every class as many as there are alike; in their order."""
    order = labels.argsort(stable=True)
    ordered = labels[order]
    ranks = torch.arange(len(labels)) - torch.searchsorted(ordered, ordered)
    return order[ranks.argsort(stable=True)[:count].sort().values]


def _method(
    settings: StudentSettings,
    plan: Plan,
    side: StudentSide,
    run: RunDirectory,
    public: ImageSet | None,
    progress: Progress,
) -> Method[Any]:
    last = plan.of_method[-1]
    chosen = settings.dpsd.model_copy(update={"rows": last.rows, "top_k": settings.top_k})
    images = None if public is None else public.images

    def make(method: Callable[..., Any], **more: Any) -> Any:
        return method(
            side.student,
            side.generator,
            settings=chosen,
            rng=side.rng,
            run=run.run_id,
            public=images,
            **more,
        )

    if not plan.starts:
        return make(DPSD, kind=last.kind)
    moments, rounds = make(MomentsMethod, balanced=settings.balanced), plan.descent
    descent = DescentMethod(moments, len(rounds), run.run_id) if rounds else None
    mixture = _mixture(plan, run.run_id) if plan.mixture else None
    class_moments = None
    if plan.sharpened:
        class_moments = ClassMomentsMethod(moments, plan.facts.groups, run.run_id)
    sums = SumsMethod(moments, descent, mixture, class_moments, chosen.sharpen_steps)
    if plan.teachers is None:
        return sums
    teachers = make(TeachersAfterMoments, kind=last.kind, sums=sums)
    return SumsThenTeachers(sums, teachers, progress, run.generator_state)


def _mixture(plan: Plan, run: str) -> MixtureMethod:
    facts = plan.facts
    cuts = _components(plan).bit_length() - 1
    return MixtureMethod(facts.channels, facts.size, facts.groups, cuts, run)


def mixture_facts(plan: Plan) -> MixtureFacts | None:
    """What a result says of the mixture that a plan asks for; None where it asks for none."""
    if not plan.mixture:
        return None
    return MixtureFacts(
        share=plan.mixture_share, components=_components(plan), sharpened=plan.sharpened
    )


def declared_teachers(plan: Plan) -> DeclaredTeachers | None:
    """On whose word teachers rest that a plan asks; None where nobody has to vouch for them."""
    if plan.teachers is None:
        return None
    shards = {name: facts.shards_declared_by for name, facts in plan.roster.items()}
    weights = {name: facts.weights_declared_by for name, facts in plan.roster.items()}
    found = [{name: by for name, by in each.items() if by} for each in (shards, weights)]
    return DeclaredTeachers(shards=found[0], weights=found[1]) if any(found) else None


def _components(plan: Plan) -> int:
    """Per class."""
    return max(part.classes or 0 for part in plan.mixture) // plan.facts.groups


def _draw_curve(run: RunDirectory, outcome: Outcome, scores: dict[str, float], what: str) -> None:
    lines = {name.replace("_", " "): v for name, v in scores.items() if name != "student"}
    draw_curve(*outcome.curve, lines, run.path / "accuracy.png", what)
