"""The step of the bundled ladder of Swin Transformer, as a user would give it: Swin-T, 32 images, AdamW."""

import torch

from harness.collection.models import MODELS, swin


def model():
    return swin.Swin(MODELS["swin_tiny"])


def batch():
    generator = torch.Generator().manual_seed(1)
    return tuple(swin.batch(MODELS["swin_tiny"], 32, generator, torch.device("cpu")))


def loss(model, *batch):
    return swin.loss(model, swin.ImageBatch(*batch))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=5e-2)
