"""Small networks for DP-SGD, and gradients per record by the plainest of ways."""

import torch
from torch import Tensor, nn

from fedtranscribe.privacy.diffusion import DpSgdPlan


def tiny_unet(seed: int = 0) -> nn.Module:
    """diffusers' U-Net for 8x8 grey images of 11 classes, its time embedding frozen."""
    from diffusers import UNet2DModel

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(8, 16),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            layers_per_block=1,
            norm_num_groups=4,
            attention_head_dim=8,
            num_class_embeds=11,
        )
    net.time_embedding.requires_grad_(False)
    return net


def denoising_loss(net: nn.Module, noisy: Tensor, times: Tensor, labels: Tensor, target: Tensor):
    return (net(noisy, times, labels).sample - target).square().flatten(1).mean(1)


def unet_inputs(records: int, copies: int, seed: int = 0) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    shape = (records, copies)
    return (
        torch.randn(*shape, 1, 8, 8, generator=rng),
        torch.randint(0, 1000, shape, generator=rng),
        torch.randint(0, 11, (records, 1), generator=rng).expand(shape),
        torch.randn(*shape, 1, 8, 8, generator=rng),
    )


def squared_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (net(x) - y).square().flatten(1).sum(1)


def gradients_one_by_one(net: nn.Module, loss, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """[b, *shape] per trainable parameter: one record after the other, plain autograd."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    found = []
    for record in zip(*inputs, strict=True):
        grads = torch.autograd.grad(loss(net, *record).mean(), parameters, allow_unused=True)
        found.append(
            [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(parameters, grads, strict=True)
            ]
        )
    return [torch.stack(grads) for grads in zip(*found, strict=True)]


def plan_for(records: int = 8, **changes) -> DpSgdPlan:
    settings = {"batch": 4, "steps": 10, "noise_multiplier": 0.0, "clip": 1.0, **changes}
    return DpSgdPlan(records=records, **settings)
