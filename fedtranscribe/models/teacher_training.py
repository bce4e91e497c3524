"""Training teachers on disjoint shards of private records, with or without a frozen backbone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedtranscribe.config import TeacherSettings
from fedtranscribe.config.catalogue import MANIFEST
from fedtranscribe.data import ImageSet, assign_shards, draw_shapes
from fedtranscribe.data.imageset import VOTES, expect_single_labels
from fedtranscribe.data.shapes import augment
from fedtranscribe.errors import StorageError
from fedtranscribe.models import Classifier, build, is_small, load_state, restore, save
from fedtranscribe.models.teachers import Manifest, load_manifest

_TAP_SIDE = 8  # the first map at most this large
_POOLED_SIDE = 4
_SHAPES = 512
_BATCH = 128


class _Reached(Exception):  # noqa: N818 (no error: the tapped map is all that is needed)
    def __init__(self, found: Tensor) -> None:
        self.found = found


class FrozenFeatures(nn.Module):
    """Images [n, ch, s, s] in [0, 1] -> features [n, d], standardised on public shapes."""

    mean: Tensor
    scale: Tensor

    def __init__(self, network: Classifier, *, pretrained: bool, seed: int) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self._tap = None if pretrained else _first_small_map(network)
        rng = torch.Generator().manual_seed(seed)
        shapes = draw_shapes(_SHAPES, network.channels, network.size, rng).float() / 255
        if not pretrained:
            _settle_batch_norms(network, shapes)
        features = torch.cat([self._raw(part) for part in shapes.split(_BATCH)])
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("scale", features.std(0).clamp_min(1e-6))

    @property
    def width(self) -> int:
        """How many features there are, d."""
        return len(self.mean)

    def forward(self, images: Tensor) -> Tensor:
        """Standardised features, cut at ten deviations so that no image can overflow a head."""
        return ((self._raw(images) - self.mean) / self.scale).clamp(-10, 10)

    @torch.no_grad()
    def _raw(self, images: Tensor) -> Tensor:
        if self._tap is None:
            return self.network.features(images)
        hook = self.network.backbone.get_submodule(self._tap).register_forward_hook(_stop)
        try:
            return self.network.features(images)
        except _Reached as reached:
            pooled = functional.adaptive_avg_pool2d(reached.found, _POOLED_SIDE)
            return pooled.flatten(1)
        finally:
            hook.remove()


def _stop(module: nn.Module, inputs: object, output: Tensor) -> None:
    raise _Reached(output)


def _first_small_map(network: Classifier) -> str | None:
    """Name of the first backbone module whose map is small; None where there is no such map."""
    found: list[str] = []

    def watch(name: str):
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if not isinstance(output, Tensor) or output.ndim != 4:
                return
            if 1 < output.shape[-1] <= _TAP_SIDE:
                found.append(name)

        return look

    modules = dict(network.backbone.named_modules())
    hooks = [m.register_forward_hook(watch(name)) for name, m in modules.items() if name]
    try:
        with torch.no_grad():
            blank = torch.zeros(2, network.channels, network.size, network.size)
            network.features(blank)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _settle_batch_norms(network: Classifier, shapes: Tensor) -> None:
    """Running statistics of public shapes: as initialised, some networks give every image alike."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # plain averages over what follows
        norm.train()
    if norms:
        with torch.no_grad():
            for part in shapes.split(_BATCH):
                network.features(part)
    network.eval()


Progress = Callable[[int, int], None]

BACKBONE = "backbone.safetensors"

_FEATURE_BATCH = 128
_HEAD_STEPS = 200
# For fewer, a process takes longer to start than it saves: 8 shards of the default steps.
_STEPS_PER_WORKER = 1_200
_MOST_WORKERS = 8
_IDLE_SECONDS = 30
# Keeps the seeds of shards apart for any thinkable shard count.
_SEED_STRIDE = 1_000_003


def shard_file(folder: Path, shard: int) -> Path:
    """Where a shard's weights lie."""
    return folder / f"shard-{shard:05d}.safetensors"


def train_teachers(
    images: ImageSet,
    manifest: Manifest,
    folder: Path,
    *,
    device: torch.device,
    progress: Progress,
    workers: int = 1,
) -> None:
    """Train one teacher per shard into `folder`; shards already there are kept, so it resumes.

    Args:
        images: the holder's private records.
        manifest: what to train; marked complete only when every shard is there.
        folder: receives `shard-*.safetensors`, the backbone where it is frozen, and the manifest.
        device: where to train.
        progress: called with (shards done, shards in all).
        workers: most processes that may train small networks side by side on CPU; eight at most
            are used, of about 400 MB each. The teachers are the same, however many there are.
    """
    expect_single_labels(images.multilabel, VOTES)
    if _begin(manifest, folder):
        return
    key = bytes.fromhex(manifest.key)
    assignment = torch.from_numpy(assign_shards(images.ids, manifest.shards, key))
    backbone = load_backbone(manifest, folder).to(device) if manifest.mode == "heads" else None
    # An empty shard has no teacher; its row is zero, so the count of teachers stays public.
    filled = assignment.unique().tolist()
    missing = [shard for shard in filled if not shard_file(folder, shard).exists()]
    parallel = backbone is None and is_small(manifest.architecture) and device.type == "cpu"
    worthwhile = len(missing) * manifest.settings.steps // _STEPS_PER_WORKER
    most = min(workers, _MOST_WORKERS, worthwhile) if parallel else 1
    # Private records go to the workers through pipes: `max_nbytes` would write them to a file.
    # Workers whose parent was killed end by themselves once they have waited for so long.
    with parallel_config("loky", idle_worker_timeout=_IDLE_SECONDS):
        train = Parallel(max(1, most), return_as="generator_unordered", max_nbytes=None)
    jobs = (
        delayed(_train_and_save)(
            *_part(images, assignment == shard), shard, manifest, folder, backbone, device
        )
        for shard in missing
    )
    done = manifest.shards - len(missing)
    progress(done, manifest.shards)
    try:
        for _ in train(jobs):
            done += 1
            progress(done, manifest.shards)
    finally:
        # joblib keeps its workers for the next call, which would meet them as they time out.
        if most > 1:
            get_reusable_executor(kill_workers=True).shutdown()
    manifest.model_copy(update={"complete": True}).save(folder)


def _part(images: ImageSet, picked: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return images.pixels[picked].numpy(), images.labels[picked].numpy()


def _train_and_save(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    shard: int,
    manifest: Manifest,
    folder: Path,
    backbone: FrozenFeatures | None,
    device: torch.device,
) -> None:
    part = torch.from_numpy(images), torch.from_numpy(labels)
    with _threads(1 if is_small(manifest.architecture) else torch.get_num_threads()):
        teacher = _train_shard(*part, shard, manifest, backbone, device)
    save(teacher, shard_file(folder, shard))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many CPU threads while inside.

    Small networks on small batches gain nothing from a second thread, and lose a factor of five
    where another process wants the second core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(manifest: Manifest, folder: Path) -> bool:
    """Claim the folder for these teachers; whether they are complete already."""
    if not (folder / MANIFEST).exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise StorageError(f"{folder} is not empty; choose another --out for the teachers.")
        manifest.save(folder)
        return False
    there = load_manifest(folder)
    # An earlier version that began them did not say how ids were made.
    made = there.ids_made or manifest.ids_made
    if there.model_copy(update={"complete": False, "ids_made": made}) != manifest:
        raise StorageError(f"{folder} holds other teachers; choose another --out for these.")
    return there.complete


def _train_shard(
    images: Tensor,
    labels: Tensor,
    shard: int,
    manifest: Manifest,
    backbone: FrozenFeatures | None,
    device: torch.device,
) -> nn.Module:
    seed = manifest.seed * _SEED_STRIDE + shard
    rng = torch.Generator().manual_seed(seed)
    if backbone is not None:
        return _fit_head(*_views(backbone, images, labels, manifest, rng, device), manifest)
    network = _seeded_build(manifest, seed)
    _fit(network, images, labels, manifest.settings, rng, device)
    return network


def _seeded_build(manifest: Manifest, seed: int) -> Classifier:
    return build(
        manifest.architecture,
        manifest.classes,
        manifest.channels,
        manifest.size,
        weights=manifest.weights,
        seed=seed,
    )


def _fit(
    module: Classifier,
    images: Tensor,
    labels: Tensor,
    settings: TeacherSettings,
    rng: torch.Generator,
    device: torch.device,
) -> None:
    """A fixed number of AdamW steps on augmented batches drawn with replacement."""
    module.to(device).train()
    optimiser = torch.optim.AdamW(
        module.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
    )
    for step in range(settings.steps):
        # Constant for the first half, then linear to one per cent.
        for group in optimiser.param_groups:
            group["lr"] = settings.lr * min(1.0, 2 * (1 - step / settings.steps) + 0.01)
        picked = torch.randint(0, len(images), (settings.batch,), generator=rng)
        batch = images[picked].to(device).float() / 255
        logits = module(augment(batch, settings.augment, rng))
        loss = F.cross_entropy(
            logits, labels[picked].to(device), label_smoothing=settings.label_smoothing
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    module.cpu().eval()


# ---------------------------------------------------------------- frozen backbone, a head per shard


def load_backbone(manifest: Manifest, folder: Path) -> FrozenFeatures:
    """The folder's frozen backbone; made and saved there if it is not there yet."""
    path = folder / BACKBONE
    # Where the file is there, it holds the public weights too.
    weights = None if path.exists() else manifest.weights
    network = build(
        manifest.architecture,
        manifest.classes,
        manifest.channels,
        manifest.size,
        weights=weights,
        seed=manifest.seed,
    )
    backbone = FrozenFeatures(network, pretrained=manifest.weights is not None, seed=manifest.seed)
    if path.exists():
        restore(backbone, load_state(path), path)
    else:
        save(backbone, path)
    return backbone.eval()


def _views(
    backbone: FrozenFeatures,
    images: Tensor,
    labels: Tensor,
    manifest: Manifest,
    rng: torch.Generator,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Features [copies·n, d] of augmented views and their labels."""
    settings, real = manifest.settings, images.to(device).float() / 255
    with torch.no_grad():
        features = [
            backbone(part)
            for _ in range(settings.copies)
            for part in augment(real, settings.augment, rng).split(_FEATURE_BATCH)
        ]
    return torch.cat(features).cpu(), labels.repeat(settings.copies)


def _fit_head(features: Tensor, labels: Tensor, manifest: Manifest) -> nn.Linear:
    """Ridge-like softmax regression by full-batch Adam; deterministic."""
    head = nn.Linear(features.shape[1], manifest.classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.AdamW(
        head.parameters(), lr=1e-2, weight_decay=manifest.settings.weight_decay
    )
    for _ in range(_HEAD_STEPS):
        loss = F.cross_entropy(
            head(features), labels, label_smoothing=manifest.settings.label_smoothing
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return head
