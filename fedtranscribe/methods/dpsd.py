"""DPSD, Algorithm 1: the server side. It holds a student and a generator, and never a real image.

One round asks (`ask`) and learns (`learn`); what lies between is the holder's business:

    z ──generator──> images ──uint8──> ImageQuery ──holder──> Answer
    Answer ──posterior──> labels ŷ (Eq. 6) ──> student (Eq. 7) ──> generator and z (Eq. 8)

Where the paper is silent or unsound we follow the project's decisions:

- Gradients are taken with respect to logits, and each row is normalised by itself (Eq. 3).
- ŷ is the posterior of the noise model times the student's prior, so that it stays on the simplex.
- Answered rows are kept and replayed: post-processing, free of privacy cost.
- The entropy of Eq. 8 is that of the batch mean (class balance, its stated purpose), and the
  activation norm is maximised, because real data activates more.
- A share of the rows may be public images as they are: a generator blurs what it was shown, and
  what teachers say about sharp images teaches more. They are public, so asking them is no leak.
- z is kept and updated (Alg. 1), and a share of it is drawn afresh each round: a fixed batch would
  collapse. `redraw = 1` is Alg. 2's fresh z.
- Algorithm 2 also differs in: no top-k set, a plain mean of gradients as label, noise added by the
  server. We keep Eq. 3 and Algorithm 1 throughout.

Guarantee:
    None of its own. Everything here is a function of public values and of private answers, so
    student and generator inherit the guarantee of the answers by post-processing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtranscribe.config import DpsdSettings
from fedtranscribe.data.shapes import augment
from fedtranscribe.methods.distillation import evidence, posterior_labels
from fedtranscribe.methods.method import Combined, Show, StateStore
from fedtranscribe.models import Classifier, Generator
from fedtranscribe.questions.gradients import RowGradient, decoupled_distillation, gradient_of
from fedtranscribe.questions.question import Kind
from fedtranscribe.questions.rows import ImageQuery

GeneratorLoss = Callable[[Classifier, Tensor, DpsdSettings], Tensor]

_INFERENCE_BATCH = 256


def generator_loss(student: Classifier, images: Tensor, settings: DpsdSettings) -> Tensor:
    """L_g of Eq. 8 on images [n, ch, h, w] in [0, 1]: one-hot term, class balance, activations.

    The student is the discriminator, so the generator learns from private answers only.
    """
    features = student.features(images)
    logits = student.head(features)
    one_hot = F.cross_entropy(logits, logits.argmax(-1))
    mean = logits.softmax(-1).mean(0)
    negative_entropy = (mean * mean.clamp_min(1e-8).log()).sum()
    activation = features.norm(dim=-1).mean() / features.shape[-1] ** 0.5
    return (
        settings.one_hot_weight * one_hot
        + settings.balance_weight * negative_entropy
        - settings.activation_weight * activation
    )


@dataclass
class _Replay:
    """Answered rows: images uint8 [n, ch, h, w] and evidence float32 [n, classes]."""

    images: Tensor
    evidence: Tensor

    def extend(self, images: Tensor, row_evidence: Tensor) -> None:
        self.images = torch.cat([self.images, images])
        self.evidence = torch.cat([self.evidence, row_evidence])


class DPSD:
    """Student side of Algorithm 1; a `Method`.

    Args:
        student: classifier with `features` and `head`; trained in place.
        generator: maps z [n, latent] to images [n, ch, h, w] in [0, 1]; trained in place.
        kind: what is asked per row (the switch s of Eq. 6, or noisy votes).
        settings: public hyper-parameters.
        rng: source of every random choice here; it needs no secrecy.
        run: prefix of query ids, unique for the ledger.
        public: public images uint8 [m, ch, h, w] for the rows that are not synthetic, or None.
        row_gradient: what the holder differentiates for gradient answers.
        loss: the generator's loss; benchmarks pass the paper's ablations.
    """

    stage = "rows answered"

    def __init__(
        self,
        student: Classifier,
        generator: Generator,
        *,
        kind: Kind,
        settings: DpsdSettings,
        rng: torch.Generator,
        run: str,
        public: Tensor | None = None,
        row_gradient: RowGradient | None = None,
        loss: GeneratorLoss = generator_loss,
    ) -> None:
        self.student = student
        self.generator = generator
        self.kind = kind
        self.settings = settings
        self.rng = rng
        self.run = run
        self.round = 0
        self._row_gradient = row_gradient or gradient_of(decoupled_distillation)
        self._loss = loss
        self._device = next(student.parameters()).device
        self._student_optimiser = torch.optim.Adam(student.parameters(), lr=settings.student_lr)
        self._generator_optimiser = torch.optim.Adam(
            generator.parameters(), lr=settings.generator_lr, betas=(0.5, 0.99)
        )
        self._public = public
        share = settings.public_share if public is not None else 0.0
        self._public_rows = round(share * settings.round_rows)
        self._z = self._draw(settings.round_rows - self._public_rows)
        self._replay = _Replay(torch.empty(0, dtype=torch.uint8), torch.empty(0))

    def ask_about(self, images: Tensor) -> None:
        """Ask about these images alone from now on, uint8 [m, ch, h, w]; a function of answers."""
        self._public, self._public_rows = images, self.settings.round_rows
        self._z = self._draw(0)

    # ---------------------------------------------------------------- one round

    def ask(self) -> ImageQuery:
        """Alg. 1 line 3: this round's images, quantised so that any transport agrees."""
        left = self.settings.rows - self.round * self.settings.round_rows
        images = torch.cat([self._synthesise(), self._next_public()])[:left]
        # Rounded as the wire rounds them, so that every transport asks the same.
        logits = self._logits(images).half().float()
        return ImageQuery(
            id=f"{self.run}/{self.round:06d}",
            kind=self.kind,
            images=images,
            index_sets=self._index_sets(logits),
            student_logits=logits if self.kind is Kind.GRADIENT else None,
        )

    def _index_sets(self, logits: Tensor) -> Tensor:
        """The student's top-k classes per row; all of them in their own order without a top-k."""
        classes = logits.shape[1]
        k = self.settings.top_k or classes
        return (
            torch.arange(classes).repeat(len(logits), 1)
            if k == classes
            else (logits.topk(k, dim=-1).indices)
        )

    def learn(self, query: ImageQuery, answer: Combined) -> dict[str, float]:
        """Alg. 1 lines 4-6: label the answered rows, update student, then generator and z.

        Args:
            query: from `ask`.
            answer: to that query.
        """
        if answer.query_id != query.id:
            raise ValueError(f"Expected an answer to {query.id}, got one to {answer.query_id}.")
        # How many nats a unit of agreement is worth.
        sharpness = answer.noise if query.kind is Kind.LABEL else answer.noise**-2
        row_evidence = evidence(query, answer.values, sharpness, self._classes, self._row_gradient)
        self._replay.extend(query.images, row_evidence.float())
        student_loss = self._train_student(self.settings.student_steps)
        synthetic = slice(len(self._z))
        labels = self._labels(query.images[synthetic], row_evidence[synthetic])
        generator_loss_ = self._train_generator(labels)
        self._refresh_z()
        self.round += 1
        return {
            "student_loss": student_loss,
            "generator_loss": generator_loss_,
        }

    def finish(self, show: Show) -> None:
        """More student updates on the answered rows alone: free, since nothing new is asked."""
        self._train_student(self.settings.finish_steps, finishing=True, show=show)

    def finish_generator(self, show: Show, store: StateStore) -> None:
        """Nothing: it was trained in the rounds."""

    @property
    def part(self) -> int:
        """All rows are asked for under one noise."""
        return 0

    @property
    def rows(self) -> int:
        """How many rows have been answered so far."""
        return len(self._replay.images)

    @property
    def finished(self) -> bool:
        """Whether every row of the plan has been answered."""
        return self.round * self.settings.round_rows >= self.settings.rows

    # ---------------------------------------------------------------- updates

    def _train_student(
        self, steps: int, *, finishing: bool = False, show: Show = lambda stage, done, total: None
    ) -> float:
        """Eq. 7 on replayed rows, whose labels follow the student as it gets better."""
        total = 0.0
        self._set_student_lr(1.0 if not finishing else 0.5)
        for step in range(steps):
            if finishing:
                self._set_student_lr(0.5 * (1 - step / steps))
            picked = self._pick(len(self._replay.images))
            images = _to_float(self._replay.images[picked], self._device)
            labels = self._labels(images, self._replay.evidence[picked])
            self.student.train()
            # Views of a row keep its label: otherwise the student learns the noise by heart.
            views = augment(images, self.settings.augment, self.rng)
            loss = F.cross_entropy(self.student(views), labels)
            self._student_optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self._student_optimiser.step()
            total += float(loss.detach())
            show("student on all answers", step + 1, steps)
        return total / max(steps, 1)

    def _train_generator(self, labels: Tensor) -> float:
        """Eq. 8: L_s + L_g down to the generator and z; the student only judges."""
        settings, total = self.settings, 0.0
        if not len(labels):  # every row was a public image
            return 0.0
        z = self._z[: len(labels)].clone().requires_grad_()
        z_optimiser = torch.optim.Adam([z], lr=settings.z_lr)
        self.student.eval()
        self.generator.train()
        with _frozen(self.student):
            for _ in range(settings.generator_steps):
                picked = self._pick(len(z))
                images = self.generator(z[picked])
                imitation = F.cross_entropy(self.student(images), labels[picked])
                loss = self._loss(self.student, images, settings)
                loss = loss + settings.imitation_weight * imitation
                self._generator_optimiser.zero_grad(set_to_none=True)
                z_optimiser.zero_grad(set_to_none=True)
                loss.backward()
                self._generator_optimiser.step()
                z_optimiser.step()
                total += float(loss.detach())
        self._z[: len(z)] = z.detach()
        return total / max(settings.generator_steps, 1)

    def _refresh_z(self) -> None:
        fresh = torch.rand(len(self._z), generator=self.rng) < self.settings.redraw
        self._z[fresh.to(self._device)] = self._draw(int(fresh.sum()))

    # ---------------------------------------------------------------- small parts

    def _synthesise(self) -> Tensor:
        self.generator.train()
        with torch.no_grad():
            parts = [self.generator(part).cpu() for part in self._z.split(_INFERENCE_BATCH)]
        images = torch.cat(parts)
        return (images.clamp(0, 1) * 255).round().to(torch.uint8)

    def _next_public(self) -> Tensor:
        """Walk through the public images, over and over."""
        if self._public is None:
            shape = self.generator.channels, self.generator.size, self.generator.size
            return torch.empty(0, *shape, dtype=torch.uint8)
        first = self.round * self._public_rows
        return self._public[torch.arange(first, first + self._public_rows) % len(self._public)]

    @property
    def _classes(self) -> int:
        return self.student.head.out_features

    def _draw(self, n: int) -> Tensor:
        z = torch.randn(n, self.generator.latent_dim, generator=self.rng)
        return z.to(self._device)

    def _pick(self, n: int) -> Tensor:
        return torch.randint(0, n, (self.settings.batch,), generator=self.rng)

    def _set_student_lr(self, share: float) -> None:
        for group in self._student_optimiser.param_groups:
            group["lr"] = self.settings.student_lr * share

    def _logits(self, images: Tensor) -> Tensor:
        self.student.eval()
        with torch.no_grad():
            parts = [
                self.student(_to_float(part, self._device))
                for part in images.split(_INFERENCE_BATCH)
            ]
        return torch.cat(parts).float().cpu()

    def _labels(self, images: Tensor, row_evidence: Tensor) -> Tensor:
        """ŷ for images (uint8 or float) under the student as it is now; detached."""
        logits = self._logits(images)
        return posterior_labels(
            logits, row_evidence, self.settings.prior_weight, self.settings.evidence_weight
        ).to(self._device)

    # ---------------------------------------------------------------- interrupt and resume

    def state(self) -> dict[str, Any]:
        """Everything `load_state` needs to go on as if nothing had happened; tensors on CPU."""
        return {
            "round": self.round,
            "student": self.student.state_dict(),
            "generator": self.generator.state_dict(),
            "student_optimiser": self._student_optimiser.state_dict(),
            "generator_optimiser": self._generator_optimiser.state_dict(),
            "z": self._z,
            "images": self._replay.images,
            "evidence": self._replay.evidence,
            "rng": self.rng.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of the same plan."""
        self.round = state["round"]
        self.student.load_state_dict(state["student"])
        self.generator.load_state_dict(state["generator"])
        self._student_optimiser.load_state_dict(state["student_optimiser"])
        self._generator_optimiser.load_state_dict(state["generator_optimiser"])
        self._z = state["z"].to(self._device)
        self._replay = _Replay(state["images"], state["evidence"])
        self.rng.set_state(state["rng"])


def _to_float(images: Tensor, device: torch.device) -> Tensor:
    return images.to(device).float() / 255 if images.dtype == torch.uint8 else images.to(device)


class _frozen:  # noqa: N801 (reads as a statement where it is used)
    """No gradients for a module's own parameters while inside."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters: Iterator[nn.Parameter] | list[nn.Parameter] = list(module.parameters())

    def __enter__(self) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(False)

    def __exit__(self, *_: object) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(True)
