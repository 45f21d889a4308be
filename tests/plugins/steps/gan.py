"""A GAN: two networks, an optimizer for each, losses by name, and an average of the generator's weights."""

import copy

import torch
from torch import nn
from torch.nn import functional

NOISE = 8
average = None


def model():
    generator = nn.Sequential(nn.Linear(NOISE, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 16))
    critic = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    return nn.ModuleDict({"generator": generator, "critic": critic})


def batch():
    return torch.randn(16, 16)


def optimizer(model):
    options = {"lr": 1e-3, "betas": (0.5, 0.999)}
    generator = torch.optim.AdamW(model["generator"].parameters(), **options)
    return {"generator": generator, "critic": torch.optim.Adam(model["critic"].parameters(), **options)}


def step(model, optimizer, real):
    global average  # noqa: PLW0603 - as users do
    generator, critic = model["generator"], model["critic"]
    if average is None:
        average = copy.deepcopy(generator).requires_grad_(False)
    made = generator(torch.randn(len(real), NOISE, device=real.device, dtype=real.dtype))
    optimizer["critic"].zero_grad()
    judged = functional.softplus(-critic(real)).mean() + functional.softplus(critic(made.detach())).mean()
    judged.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    optimizer["critic"].step()
    optimizer["generator"].zero_grad()
    fooled = functional.softplus(-critic(made)).mean()
    fooled.backward()
    optimizer["generator"].step()
    with torch.no_grad():
        for one, new in zip(average.parameters(), generator.parameters(), strict=True):
            one.lerp_(new, 0.1)
    return {"critic": judged, "generator": fooled}
