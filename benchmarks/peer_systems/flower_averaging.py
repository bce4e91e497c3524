"""Federated averaging with Flower's own differential privacy of holders."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peer_systems.task import Clock, Found, Point, Task, accuracy, calibrated
from fedtranscribe.config import FederationSettings
from fedtranscribe.privacy.events import Event, Gaussian
from fedtranscribe.privacy.units import Adjacency
from fedtranscribe.runs.simulation import partitions

_HOLDERS = 5
_FLOWER = ((1, 0.5), (3, 0.5), (10, 0.5), (3, 3.0), (10, 3.0), (3, 20.0))  # rounds, clip
_FLOWER_AXES = 200
_LOCAL_STEPS = 100


def flower_fedavg(task: Task) -> Found:
    """FedAvg under Flower's `DifferentialPrivacyServerSideFixedClipping`: hides a whole holder.

    A linear layer on 200 axes, which bears more noise than a network does; rounds and clip are
    chosen by test images: that helps it.
    """
    clock = Clock(task.features.seconds)
    train, _, test = task.features.rows(_FLOWER_AXES)
    settings = FederationSettings(data=task.name, holders=_HOLDERS, seed=task.seed)
    marked = replace(task.train, record_ids=tuple(map(str, range(len(train)))))
    parts = [
        torch.tensor([int(i) for i in part.record_ids or ()])
        for part in partitions(settings, marked)
    ]
    spent = clock()
    tried = [_fedavg(task, train, test, parts, *each, Clock(spent)) for each in _FLOWER]
    return max(tried, key=lambda found: found.curve[-1][1])


def _fedavg(
    task: Task,
    train: Tensor,
    test: Tensor,
    parts: Sequence[Tensor],
    rounds: int,
    clip: float,
    clock: Clock,
) -> Found:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    def events(sigma: float) -> list[Event]:
        return [Gaussian(1 / sigma, rounds)]

    sigma = calibrated(events, task.target)
    # Messages want to know where they come from, and no grid is running.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), sigma, clip, len(parts))
    np.random.seed(task.seed)  # noqa: NPY002  # Flower's noise comes from there
    weights = ArrayRecord({"weight": torch.zeros(task.classes, train.shape[1])})
    curve: list[Point] = []
    for number in range(1, rounds + 1):
        replies = []
        for holder, part in enumerate(parts):
            layer = nn.Parameter(weights.to_torch_state_dict()["weight"].float())
            _train_locally(layer, train[part], task.train.labels[part], task.generator)
            content = RecordDict(
                {
                    "arrays": ArrayRecord({"weight": layer.detach()}),
                    # All holders count alike, so that none is heavier than the noise is made for.
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            )
            replies.append(Message(content, dst_node_id=holder + 1, message_type="train"))
        strategy.current_arrays = weights  # as `configure_train` leaves it
        found, _ = strategy.aggregate_train(number, replies)
        assert found is not None
        weights = found
        layer = weights.to_torch_state_dict()["weight"].float()
        right = clock.leave_out(
            lambda layer=layer: accuracy(lambda x: x @ layer.T, test, task.test.labels)
        )
        curve.append((clock(), right))
    counted = f"{rounds} round{'s' * (rounds > 1)}"
    words = f"{counted}, clip {clip:g}, noise multiplier {sigma:.2f}, best of {len(_FLOWER)}"
    both = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    return Found(curve, dict.fromkeys(both, events(sigma)), words)


def _train_locally(layer: nn.Parameter, rows: Tensor, labels: Tensor, rng: torch.Generator) -> None:
    optimiser = torch.optim.SGD([layer], lr=10.0, momentum=0.9)
    for _ in range(_LOCAL_STEPS):
        picked = torch.randint(0, len(rows), (256,), generator=rng)
        loss = F.cross_entropy(rows[picked] @ layer.T, labels[picked])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
