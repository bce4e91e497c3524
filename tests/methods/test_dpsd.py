import copy

import pytest
import torch

from fedtranscribe.config import DpsdSettings
from fedtranscribe.methods.dpsd import DPSD, generator_loss
from fedtranscribe.methods.method import Combined
from fedtranscribe.models import Generator, build
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery

# A unit of agreement is worth ten nats.
STD = 10**-0.5
SMALL = DpsdSettings(
    rows=50,
    round_rows=20,
    batch=8,
    student_steps=3,
    finish_steps=3,
    generator_steps=2,
    latent_dim=8,
    generator_width=4,
)


def make(
    kind: Kind = Kind.VOTE,
    settings: DpsdSettings = SMALL,
    public: torch.Tensor | None = None,
) -> DPSD:
    return DPSD(
        build("cnn-small", 10, 1, 28),
        Generator(settings.latent_dim, 1, 28, settings.generator_width),
        kind=kind,
        settings=settings,
        rng=torch.Generator().manual_seed(0),
        run="run",
        public=public,
    )


def reply(query: ImageQuery) -> Combined:
    rng = torch.Generator().manual_seed(len(query.id))
    return Combined(query.id, torch.rand(query.rows, query.k, generator=rng), STD)


def test_a_run_asks_exactly_the_rows_of_its_plan():
    method, asked, ids = make(), 0, set()
    while not method.finished:
        query = method.ask()
        asked += query.rows
        ids.add(query.id)
        method.learn(query, reply(query))
    assert asked == SMALL.rows
    assert len(ids) == 3


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_rows_is_public_images_as_they_are(share):
    public = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1).expand(40, 1, 28, 28)
    method = make(settings=SMALL.model_copy(update={"public_share": share}), public=public)
    asked, seen = 0, []
    while not method.finished:
        query = method.ask()
        asked += query.rows
        images = query.images[round(share * -SMALL.round_rows) or SMALL.round_rows :]
        seen += [int(image.float().mean()) for image in images if image.float().std() == 0]
        method.learn(query, reply(query))
    assert asked == SMALL.rows
    # In order, and no image twice before all have been asked.
    assert seen == [i % 40 for i in range(len(seen))]
    assert len(seen) == {0.0: 0, 0.5: 20, 1.0: 50}[share]


@pytest.mark.parametrize(
    ("kind", "top_k", "k", "logits"),
    [(Kind.GRADIENT, None, 10, True), (Kind.LABEL, 3, 3, False)],
)
def test_queries_carry_what_their_kind_needs_and_no_more(kind, top_k, k, logits):
    query = make(kind, SMALL.model_copy(update={"top_k": top_k})).ask()
    assert query.kind is kind
    assert query.k == k
    assert query.images.dtype == torch.uint8
    assert (query.student_logits is not None) is logits


def test_learning_moves_student_generator_and_z():
    method = make()
    before = copy.deepcopy(method.state())
    query = method.ask()
    method.learn(query, reply(query))
    after = method.state()
    assert not torch.equal(before["z"], after["z"])
    for part in ("student", "generator"):
        changed = [not torch.equal(before[part][k], after[part][k]) for k in before[part]]
        assert any(changed), part


def test_the_student_is_judge_only_while_the_generator_learns():
    method = make(settings=SMALL.model_copy(update={"student_steps": 0}))
    before = copy.deepcopy(method.student.state_dict())
    query = method.ask()
    method.learn(query, reply(query))
    after = method.student.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.requires_grad for p in method.student.parameters())


def test_going_on_from_a_state_gives_the_same_student():
    whole, half = make(), make()
    first = whole.ask()
    whole.learn(first, reply(first))
    second = whole.ask()
    state = copy.deepcopy(whole.state())
    whole.learn(second, reply(second))
    half.load_state(state)
    half.learn(second, reply(second))
    for name, value in whole.student.state_dict().items():
        torch.testing.assert_close(half.student.state_dict()[name], value, rtol=0, atol=0)


def test_an_answer_to_another_query_is_refused():
    method = make()
    query = method.ask()
    with pytest.raises(ValueError, match="run/000000"):
        method.learn(query, Combined("other", torch.zeros(query.rows, query.k), STD))


def test_each_term_of_the_generator_loss_can_be_switched_off():
    student = build("cnn-small", 10, 1, 28).eval().requires_grad_(False)
    images = torch.rand(16, 1, 28, 28)
    off = {"one_hot_weight": 0.0, "balance_weight": 0.0, "activation_weight": 0.0}
    silent = SMALL.model_copy(update=off)
    assert float(generator_loss(student, images, silent)) == 0.0
    one_hot = generator_loss(student, images, silent.model_copy(update={"one_hot_weight": 1.0}))
    balance = generator_loss(student, images, silent.model_copy(update={"balance_weight": 1.0}))
    activation = generator_loss(
        student, images, silent.model_copy(update={"activation_weight": 1.0})
    )
    # Cross-entropy of the likeliest class is positive, negative entropy and activation are not.
    assert one_hot > 0 > balance
    assert activation < 0
    # Perfect balance over ten classes is the least that the second term can be.
    assert float(balance) >= -torch.tensor(10.0).log() - 1e-6


def test_students_learn_from_clear_votes():
    # A teacher that names a class by brightness; the student has to find it from answers alone.
    settings = SMALL.model_copy(
        update={"rows": 200, "round_rows": 100, "student_steps": 80, "augment": 0.0}
    )
    method = make(settings=settings)

    def oracle(query: ImageQuery) -> Combined:
        bright = query.images.float().mean((1, 2, 3)) > query.images.float().mean()
        values = (query.index_sets == bright.long()[:, None]).float()
        return Combined(query.id, values, STD)

    query = method.ask()
    while True:
        answer = oracle(query)
        method.learn(query, answer)
        if method.finished:
            break
        query = method.ask()
    method.student.eval()
    with torch.no_grad():
        guessed = method.student(query.images.float() / 255).argmax(-1)
    truth = (query.images.float().mean((1, 2, 3)) > query.images.float().mean()).long()
    assert (guessed == truth).float().mean() > 0.75
