"""The recipe of recipe.py on batches that the other side has written, from weights that it has written."""

import numpy
import torch

from peer import serve
from recipe import CIFAR, MEAN, STD, Learner

SIZE = 32


def normalize(pixels):
    """What torchvision's ToTensor and Normalize do with uint8 NHWC pixels. Returns float32 NCHW, channels last."""
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    return pixels.permute(0, 3, 1, 2).to(torch.float32).div(255).sub(mean).div(std)


def batches(path, sizes, device):
    """Reads batches of uint8 NHWC pixels, int64 labels and flips, and yields images and labels."""
    with open(path, "rb") as file:
        for n in sizes:
            pixels = torch.from_numpy(numpy.fromfile(file, numpy.uint8, n * SIZE * SIZE * 3)).view(n, SIZE, SIZE, 3)
            labels = torch.from_numpy(numpy.fromfile(file, numpy.int64, n))
            flips = torch.from_numpy(numpy.fromfile(file, numpy.bool_, n))
            images = normalize(torch.where(flips.view(n, 1, 1, 1), pixels.flip(2), pixels))
            yield images.to(device, memory_format=torch.channels_last), labels.to(device)


def train(weights, path, sizes, steps, device):
    """Trains on every batch and returns the losses; steps is the length of the schedule."""
    train.learner = learner = Learner(CIFAR, device, steps, weights)
    losses = [learner.step(images, labels) for images, labels in batches(path, sizes, device)]
    return {"losses": torch.stack(losses).double().tolist()}


def test(path, sizes, device):
    return {"top1": train.learner.top1(batches(path, sizes, device))}


if __name__ == "__main__":
    serve(train, test)
