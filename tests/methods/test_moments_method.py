import pytest
import torch

from fedtranscribe.config import DpsdSettings
from fedtranscribe.data import draw_shapes
from fedtranscribe.methods.method import Combined
from fedtranscribe.methods.moments import (
    MomentsMatching,
    MomentsMethod,
    features_of,
    moments_of,
    public_map,
    set_head,
)
from fedtranscribe.models import Generator, build
from fedtranscribe.questions.moments import SUM_BITS, MomentsQuery, MomentSums, moment_sums
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.records import id_weights

CLASSES = 3
FAINT = 1e-3


def bars(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images whose class is the direction of a bar."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.randint(0, 60, (n, 1, 28, 28), generator=rng, dtype=torch.uint8)
    for image, label, at in zip(
        images, labels, torch.randint(4, 22, (n,), generator=rng), strict=True
    ):
        if label == 0:
            image[:, at : at + 2, :] = 250
        elif label == 1:
            image[:, :, at : at + 2] = 250
        else:
            image[0].diagonal(int(at) - 13).fill_(250)
    return images, labels


def fit(network) -> None:
    """Set its axes by 300 shapes."""
    features = features_of(network)
    images = draw_shapes(300, 1, 28, torch.Generator().manual_seed(0))
    features.set_axes(*public_map(features.fixed, images, features.map.shape[1], seed=0, floor=1.0))


@pytest.fixture(scope="module")
def student():
    network = build("scatter", CLASSES, 1, 28)
    fit(network)
    return network


def method(student) -> MomentsMethod:
    rng = torch.Generator().manual_seed(0)
    return MomentsMethod(
        student, Generator(8, 1, 28, 8), settings=DpsdSettings(), rng=rng, run="run"
    )


def sums_of(student, query: MomentsQuery) -> MomentSums:
    images, labels = bars(150, 1)
    with torch.no_grad():
        student.backbone.map.copy_(query.map)
        rows = student.features(images.float() / 255)
    block = rows, labels, id_weights([str(i) for i in range(len(rows))])
    width, classes = rows.shape[1], query.classes or None
    vector = moment_sums([block], width, classes).double() / 2**SUM_BITS
    return MomentSums.from_vector(vector, width, classes)


def answered(student, query: MomentsQuery, noise: float = FAINT) -> Combined:
    sums = sums_of(student, query)
    rows, columns = torch.triu_indices(*sums.second.shape)
    parts = [sums.second[rows, columns]]
    if sums.by_class is not None:
        parts.append(sums.by_class.flatten())
    return Combined(query.id, torch.cat(parts)[None], noise)


def learned(student) -> tuple[MomentsMethod, MomentsQuery, MomentsQuery]:
    """A student after both questions, answered without noise."""
    asking = method(student)
    first = asking.ask()
    asking.learn(first, answered(student, first))
    second = asking.ask()
    asking.learn(second, answered(student, second))
    return asking, first, second


def test_moments_alone_teach_a_task(student):
    asking, first, second = learned(student)
    assert asking.finished
    images, labels = bars(60, 2)
    right = (student(images.float() / 255).argmax(1) == labels).float().mean()
    assert float(right) > 0.9
    assert (first.id, second.id) == ("run/moments-0", "run/moments-1")
    assert (first.classes, second.classes) == (0, CLASSES)


def test_a_stored_state_asks_the_same_second_question(student):
    asking = method(student)
    first = asking.ask()
    asking.learn(first, answered(student, first))
    again = method(build("scatter", CLASSES, 1, 28, seed=7))
    again.load_state(asking.state())
    assert (again.round, again.finished) == (1, False)
    assert again.ask().digest() == asking.ask().digest()


def test_the_second_question_evens_out_what_the_first_showed(student):
    _, first, second = learned(student)
    before, after = (sums_of(student, query).second[:-1, :-1] for query in (first, second))

    def weight_of_the_ten_largest(second: torch.Tensor) -> float:
        values = torch.linalg.eigvalsh(second)
        return float(values[-10:].sum() / values.sum())

    assert weight_of_the_ten_largest(after) < weight_of_the_ten_largest(before)


def test_the_public_map_depends_on_public_images_and_seed_alone(student):
    again = build("scatter", CLASSES, 1, 28, seed=9)
    fit(again)
    fresh = build("scatter", CLASSES, 1, 28)
    fit(fresh)
    assert torch.equal(again.backbone.map, fresh.backbone.map)
    # 300 images cannot show more than 300 axes.
    assert not bool(fresh.backbone.map[:, 300:].any())


def test_even_noise_alone_gives_a_finite_student(student):
    asking = method(student)
    rng = torch.Generator().manual_seed(0)
    while not asking.finished:
        query = asking.ask()
        noise = 100 * torch.randn(1, query.width, generator=rng).double()
        asking.learn(query, Combined(query.id, noise, 100.0))
    assert bool(torch.isfinite(student.head.weight).all())
    assert bool(torch.isfinite(student(bars(3, 0)[0].float() / 255)).all())


@pytest.mark.long
def test_the_generator_comes_closer_to_the_moments(student):
    _, _, second = learned(student)
    told = moments_of(second, answered(student, second))
    generator = Generator(8, 1, 28, 8)
    rng = torch.Generator().manual_seed(0)

    course = MomentsMatching(generator, student, told, DpsdSettings(), rng)
    losses = [course.step() for _ in range(27)]
    assert course.done == 27
    assert losses[-1] < losses[0]
    assert all(parameter.requires_grad for parameter in student.head.parameters())


def test_only_a_student_of_fixed_features_can_be_set():
    with pytest.raises(ValueError, match="cnn-small"):
        method(build("cnn-small", CLASSES, 1, 28)).ask()
    query = MomentsQuery("q", Kind.MOMENTS, torch.zeros(4), torch.ones(4, 2), "scatter", CLASSES)
    answer = Combined("q", torch.ones(1, query.width).double(), 1.0)
    with pytest.raises(ValueError, match="cnn-small"):
        set_head(build("cnn-small", CLASSES, 1, 28), query, answer, None, torch.ones(CLASSES))
