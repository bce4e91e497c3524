"""PATE: noisy votes of teachers about public images."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peer_systems.task import Clock, Found, Task, calibrated
from fedtranscribe.privacy.events import Event, Gaussian
from fedtranscribe.privacy.units import Adjacency

_TEACHERS = 250
_LEAST_RECORDS = 80  # of a teacher: the digits have 50 teachers
_PATE_AXES = 200
_ASKED = (100, 300, 1_000, 3_000)


def pate(task: Task) -> Found:
    """Noisy votes of up to 250 teachers (GNMax, Papernot et al. 2018) about public images.

    Teachers and student are logistic regressions on 200 axes, which know more of so few records
    than networks do. How many images are asked about is chosen by test images: that helps it.
    ε is that of any votes. Papernot et al. state one that depends on the votes that were cast,
    which is smaller and private itself.
    """
    from sklearn.linear_model import LogisticRegression

    clock = Clock(task.features.seconds)
    train, pool, test = task.features.rows(_PATE_AXES)
    order = torch.randperm(len(train), generator=task.generator)
    votes = torch.zeros(len(pool), task.classes)
    for part in order.chunk(min(_TEACHERS, len(train) // _LEAST_RECORDS)):
        labels = task.train.labels[part]
        if len(labels.unique()) == 1:
            named = labels[:1].expand(len(pool))
        else:
            teacher = LogisticRegression(C=30.0, max_iter=300).fit(train[part], labels)
            named = torch.as_tensor(teacher.predict(pool))
        votes += F.one_hot(named, task.classes)
    spent = clock()

    def asked(count: int) -> tuple[float, float, list[Event], str]:
        # A record changes one teacher, whose vote may move from one class to another.
        def events(sigma: float) -> list[Event]:
            return [Gaussian(math.sqrt(2) / sigma, count)]

        watch = Clock(spent)
        sigma = calibrated(events, task.target)
        noise = sigma * torch.randn(count, task.classes, generator=task.generator)
        named = (votes[:count] + noise).argmax(1)
        answers = task.test.labels.numpy()
        guesses = named[:1].expand(len(test)).numpy()
        if len(named.unique()) > 1:
            student = LogisticRegression(C=3.0, max_iter=300).fit(pool[:count], named)
            guesses = student.predict(test)
        right = float(np.mean(guesses == answers))
        return right, watch(), events(sigma), f"{count:,} votes, noise {sigma:.0f}"

    right, seconds, events, words = max(asked(min(n, len(pool))) for n in _ASKED)
    return Found([(seconds, right)], dict.fromkeys(Adjacency, events), words)
