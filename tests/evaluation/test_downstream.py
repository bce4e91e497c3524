"""Classifiers that learn from synthetic images only."""

import pytest
import torch

from fedtranscribe.config import build
from fedtranscribe.config.evaluation import CLASSIFIERS as ALL
from fedtranscribe.config.evaluation import NETS, QUICK, SKLEARN, EvaluationSettings
from fedtranscribe.errors import ConfigError
from fedtranscribe.evaluation.downstream import downstream, predict, train_net
from fedtranscribe.results.progress import silent
from tests.evaluation.conftest import labelled

CPU = torch.device("cpu")


def run(names: str, synthetic, real, classes: int = 3, **settings):
    chosen = build(EvaluationSettings, {"classifiers": names, "epochs": 4, **settings})
    return downstream(synthetic, real, classes, chosen, CPU, silent)


def test_agrees_with_a_plain_scikit_learn_script():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score
    from sklearn.naive_bayes import BernoulliNB, GaussianNB
    from sklearn.tree import DecisionTreeClassifier

    synthetic, real = labelled(300, seed=0), labelled(200, seed=1)
    ours = run(
        "logistic-regression,random-forest,gaussian-nb,bernoulli-nb,decision-tree,lda,bagging",
        synthetic,
        real,
        max_train=250,
        seed=3,
    )

    x = synthetic[0].numpy().reshape(300, -1)[:250].astype("float32") / 255
    y = synthetic[1].numpy()[:250]
    x_test = real[0].numpy().reshape(200, -1).astype("float32") / 255
    plain = {
        "logistic-regression": LogisticRegression(max_iter=5000, random_state=3),
        "random-forest": RandomForestClassifier(100, class_weight="balanced", random_state=3),
        "gaussian-nb": GaussianNB(),
        "bernoulli-nb": BernoulliNB(binarize=0.5),
        "decision-tree": DecisionTreeClassifier(class_weight="balanced", random_state=3),
        "lda": LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.5),
        "bagging": BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=3),
    }
    expected = {
        name: accuracy_score(real[1].numpy(), model.fit(x, y).predict(x_test))
        for name, model in plain.items()
    }
    assert {name: ours[name] for name in plain} == pytest.approx(expected)
    assert ours["mean_sklearn"] == pytest.approx(sum(expected.values()) / 7)
    assert ours["mean_sklearn_of"] == 7
    assert len(set(expected.values())) > 3, "the classifiers must differ for this to say anything"


@pytest.mark.long
def test_every_classifier_learns_an_easy_task():
    found = run("all", labelled(400, seed=0), labelled(200, seed=1), epochs=50, patience=50)
    assert set(ALL) <= set(found)
    assert all(found[name] > 0.5 for name in ALL), found
    assert found["mean_sklearn_of"] == len(SKLEARN) == 11
    assert found["untrained"] == {}


def test_labels_with_gaps_are_no_trouble():
    images, labels = labelled(300, seed=0)
    gaps = torch.tensor([0, 2, 5])[labels]
    test_images, test_labels = labelled(100, seed=1)
    tested = test_images, torch.tensor([0, 2, 5])[test_labels]
    found = run("mlp,lda,xgboost", (images, gaps), tested, classes=7, epochs=50, patience=50)
    assert found["untrained"] == {}
    assert all(found[name] > 0.5 for name in ("mlp", "lda", "xgboost"))


@pytest.mark.parametrize("name", NETS)
def test_real_images_have_no_say_in_the_choice(name: str):
    """On two classes, wrong labels turn right answers into wrong ones, if the network is one."""
    synthetic = labelled(240, seed=0, classes=2)
    images, labels = labelled(100, seed=1, classes=2)
    right = run(name, synthetic, (images, labels), classes=2)
    wrong = run(name, synthetic, (images, 1 - labels), classes=2)
    assert right["selection"] == wrong["selection"]
    assert right[name] + wrong[name] == pytest.approx(1)


def test_the_chosen_epoch_is_the_best_on_synthetic_validation_images():
    images, labels = labelled(240, seed=0)
    shown = []
    options = {"patience": 50, "seed": 0, "device": CPU}
    found = train_net(
        "mlp",
        images,
        labels,
        3,
        epochs=12,
        progress=lambda done, total: shown.append((done, total)),
        **options,
    )
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))
    held = order[:40]
    score = float((predict(found.network, images[held]) == labels[held]).float().mean())
    assert score == pytest.approx(found.validation)
    assert shown[-1] == (12, 12)
    # Stopping at that epoch gives the same network: nothing later could change it.
    again = train_net(
        "mlp", images, labels, 3, epochs=found.epoch, progress=lambda *_: None, **options
    )
    assert again.epoch == found.epoch
    for ours, theirs in zip(
        found.network.state_dict().values(), again.network.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_patience_ends_the_training_early():
    images, labels = labelled(120, seed=0)
    epochs = []
    train_net(
        "mlp",
        images,
        torch.zeros_like(labels),
        3,
        epochs=50,
        patience=2,
        seed=0,
        device=CPU,
        progress=lambda done, total: epochs.append(done),
    )
    # All labels alike: perfect at once, and nothing gets better than perfect.
    assert epochs[-2] < 10
    assert epochs[-1] == 50


def test_one_class_only_is_reported_not_raised():
    images, _ = labelled(100, seed=0)
    one_class = images, torch.full((100,), 2)
    found = run("mlp,lda,xgboost", one_class, labelled(50, seed=1))
    assert found["lda"] is None
    assert found["mean_sklearn"] is None
    assert set(found["untrained"]) == {"mlp", "lda", "xgboost"}
    assert "label 2" in found["untrained"]["mlp"]


def test_one_class_among_the_first_samples_is_reported():
    images, labels = labelled(100, seed=0)
    labels[:10] = 1
    found = run("gaussian-nb", (images, labels), labelled(50, seed=1), max_train=10)
    assert "first 10" in found["untrained"]["gaussian-nb"]


@pytest.mark.parametrize(
    ("words", "names"),
    [("all", ALL), ("quick", QUICK), ("none", ()), ("lda, mlp", ("mlp", "lda"))],
)
def test_names_of_classifiers(words: str, names: tuple[str, ...]):
    assert build(EvaluationSettings, {"classifiers": words}).classifiers == names


def test_an_unknown_classifier_is_named_with_close_ones():
    with pytest.raises(ConfigError, match=r"'gausian-nb'.*did you mean gaussian-nb"):
        build(EvaluationSettings, {"classifiers": "cnn,gausian-nb"})
    with pytest.raises(ConfigError, match="known: all, quick"):
        build(EvaluationSettings, {"classifiers": "zzzzz"})
