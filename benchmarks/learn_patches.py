"""Makes the bank of `fedtranscribe.models.patches` from drawn images.

    python benchmarks/learn_patches.py        # writes fedtranscribe/models/patches.safetensors

Filters are patches of dead leaves, whitened as all of their patches are. Clustering the patches
first, as is usual, was no better: 63.9 against 63.7 % of CIFAR-10's held-out training images at
ε = 3, from 20,000 records. Another file would be another question to every holder: a test knows
its digest.
"""

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from fedtranscribe.data.shapes import draw_leaves
from fedtranscribe.models.patches import BANK, SIDE, contrasts

SEED = 0
IMAGES, SIZE, PATCHES = 2_000, 32, 200_000
FILTERS = 400
# Added to the variance along every axis, so that whitening does not enlarge what is hardly there.
FLOOR = 0.1


def main() -> None:
    bank = {}
    for channels in (1, 3):
        filters, offsets = learn(channels)
        bank |= {f"filters-{channels}": filters, f"offsets-{channels}": offsets}
    save_file(bank, BANK, {"made-by": "benchmarks/learn_patches.py", "seed": str(SEED)})


def learn(channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Filters [ch · p · p, q] of normalised patches, and what is added to their products [q]."""
    rng = torch.Generator().manual_seed(SEED)
    images = draw_leaves(IMAGES, channels, SIZE, rng).float() / 255
    # Half of them in a mirror, so that the mean patch is its own mirror image.
    images = torch.cat([images[::2], images[1::2].flip(-1)])
    patches = F.unfold(images, SIDE).transpose(1, 2).flatten(0, 1)
    picked = torch.randperm(len(patches), generator=rng)[:PATCHES]
    found = contrasts(patches[picked]).double()
    mean = found.mean(0)
    covariance = (found - mean).T @ (found - mean) / len(found)
    variances, axes = torch.linalg.eigh(covariance)
    whiten = axes @ torch.diag((variances + FLOOR).rsqrt()) @ axes.T
    leading = F.normalize((found[:FILTERS] - mean) @ whiten, dim=1)
    filters = whiten @ leading.T
    return filters.float().contiguous(), -(mean @ filters).float()


if __name__ == "__main__":
    main()
