"""One gradient per private record: the mean over its K copies, by three back ends that agree.

With K copies of b records a network sees b·K rows. `opacus` finds a gradient for each row and
averages afterwards; `functional` and `contracted` never hold more than one gradient per record.
`contracted` (`contraction.py`) is the quickest and needs the least memory, for networks of common
layers; `functional` takes any network that torch.func can map over.
"""

import warnings
from collections.abc import Callable
from enum import StrEnum

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.hooks import RemovableHandle

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.trainers.contraction import Contraction

Inputs = tuple[Tensor, ...]
"""What the loss takes for each record and copy, each [b, K, ...]."""
Loss = Callable[..., Tensor]
"""(network, *rows [r, ...]) -> each row's loss [r]; a row's loss depends on that row alone."""
RecordGradients = Callable[[Inputs], list[Tensor]]
"""Gradients of each record's mean loss, [b, *shape] for each of `trainable(model)` in turn."""


class Backend(StrEnum):
    """How gradients per record are found; it changes time and memory, never the result."""

    OPACUS = "opacus"
    """Opacus's hooks on all b·K rows, averaged over copies afterwards."""
    FUNCTIONAL = "functional"
    """torch.func: one record's gradient, mapped over records."""
    CONTRACTED = "contracted"
    """Copies are summed inside each layer."""

    def gradients_held(self, multiplicity: int) -> int:
        """How many gradients of the network are in memory for each record."""
        # Opacus stacks a second set where it averages.
        return multiplicity + 1 if self is Backend.OPACUS else 1

    @property
    def slack(self) -> float:
        """How much memory a pass takes over the activations that autograd keeps.

        Generously: 3.7 and 1.2 were seen at most, for U-Nets on a CPU.
        """
        return 4.0 if self is Backend.FUNCTIONAL else 2.0


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take part, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def record_gradients(backend: Backend, model: nn.Module, loss: Loss) -> RecordGradients:
    """The back end for one network."""
    _refuse_mixing(model)
    if not trainable(model):
        raise ConfigError("Expected a trainable parameter, got none; unfreeze some layer.")
    losses = _Losses(model, loss)
    match backend:
        case Backend.OPACUS:
            return _Opacus(losses)
        case Backend.FUNCTIONAL:
            return _Functional(losses)
        case Backend.CONTRACTED:
            return Contraction(losses, trainable(losses))


def rows_of(inputs: Inputs) -> Inputs:
    """[b, K, ...] as rows [b·K, ...]."""
    return tuple(x.flatten(0, 1) for x in inputs)


class _Losses(nn.Module):
    """The loss as a network, so that parameters can be swapped underneath it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, *rows: Tensor) -> Tensor:
        losses = self._loss(self.model, *rows)
        if losses.shape != rows[0].shape[:1]:
            raise ConfigError(
                f"Expected one loss for each of {len(rows[0])} rows, got {tuple(losses.shape)}."
            )
        return losses


class _Functional:
    def __init__(self, losses: _Losses) -> None:
        self._losses = losses

    def __call__(self, inputs: Inputs) -> list[Tensor]:
        parameters = {name: p.detach() for name, p in trainable(self._losses).items()}

        def record_loss(parameters: dict[str, Tensor], *rows: Tensor) -> Tensor:
            return functional_call(self._losses, parameters, rows).mean()

        per_record = vmap(
            grad(record_loss), in_dims=(None, *[0] * len(inputs)), randomness="different"
        )
        with warnings.catch_warnings():
            # Attention's quick kernels are called record by record; the one that torch can map
            # took twice the time and half as much memory again.
            warnings.filterwarnings("ignore", message="There is a performance drop because")
            return list(per_record(parameters, *inputs).values())


class _Opacus:
    def __init__(self, losses: _Losses) -> None:
        for name, layer in losses.model.named_modules():
            # Opacus 1.6 passes over these two without a word.
            if getattr(layer, "padding_mode", "zeros") != "zeros":
                raise ModelMismatchError(
                    f"Expected padding_mode=zeros at {name!r}; take backend=functional."
                )
            if getattr(layer, "padding_idx", None) is not None:
                raise ModelMismatchError(
                    f"Expected padding_idx=None at {name!r}; take backend=contracted."
                )
        self._losses = losses

    def __call__(self, inputs: Inputs) -> list[Tensor]:
        from opacus import GradSampleModule

        records, copies = inputs[0].shape[:2]
        parameters = list(trainable(self._losses).values())
        self._expect_training()
        handles = self._contiguous_inputs()
        watched = GradSampleModule(self._losses, loss_reduction="sum", strict=False)
        try:
            with warnings.catch_warnings():
                # The first layer's inputs are data, which need no gradient.
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                watched(*rows_of(inputs)).sum().backward()
            return [_mean_over_copies(p, records, copies) for p in parameters]
        finally:
            watched.to_standard_module()
            for handle in handles:
                handle.remove()
            for p in parameters:
                # Opacus leaves the plain gradient behind, which is anything but private.
                p.grad = None

    def _contiguous_inputs(self) -> list[RemovableHandle]:
        # Opacus 1.6 cuts patches as if memory were in order of the indices; behind attention
        # channels come last, and its gradients would be wrong there.
        return [
            layer.register_forward_pre_hook(lambda _, args: tuple(x.contiguous() for x in args))
            for layer in self._losses.modules()
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        ]

    def _expect_training(self) -> None:
        for name, layer in self._losses.model.named_modules():
            taking_part = any(p.requires_grad for p in layer.parameters(recurse=False))
            if taking_part and not layer.training:
                raise ConfigError(
                    f"Expected layer {name!r} in training mode, Opacus passes over it otherwise; "
                    "call train(), or take backend=contracted."
                )


def _mean_over_copies(parameter: nn.Parameter, records: int, copies: int) -> Tensor:
    rows = getattr(parameter, "grad_sample", None)
    if rows is None:
        return parameter.new_zeros(records, *parameter.shape)
    parameter.grad_sample = None  # pyright: ignore[reportAttributeAccessIssue]
    return rows.view(records, copies, *parameter.shape).mean(1)


def _refuse_mixing(model: nn.Module) -> None:
    """Layers that mix records, or that keep something of them without noise."""
    for name, layer in model.named_modules():
        if (why := _fault(layer)) is not None:
            raise ModelMismatchError(
                f"Expected no {type(layer).__name__} at {name or 'the top'!r}: {why}; "
                "take GroupNorm for a norm, and plain settings for an embedding."
            )


def _fault(layer: nn.Module) -> str | None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return "it mixes the records of a batch"
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        return "it keeps statistics of private records"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.max_norm is not None:
            return "max_norm changes the rows that private records look up"
        if layer.scale_grad_by_freq:
            return "scale_grad_by_freq mixes the records of a batch"
    return None
