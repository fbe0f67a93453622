"""PyTorch's usual way to train on a folder of images: ImageFolder, Pillow, torchvision's transforms, DataLoader."""

import os
import tarfile
import tempfile
import time

import torch
from torchvision import datasets, transforms

from peer import serve, synchronize
from recipe import MEAN, RECIPES, STD, Learner

state = {}


def prepare(archive, part, recipe, batch, device, steps):
    """Unpacks the archive, as users of ImageFolder do once, and makes the model."""
    torch.manual_seed(1)
    recipe = RECIPES[recipe]
    state["folder"] = folder = tempfile.TemporaryDirectory(prefix="bench-images-")
    with tarfile.open(archive) as tar:
        tar.extractall(folder.name, filter="data")
    transform = transforms.Compose([
        recipe.crop,
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])
    state["images"] = datasets.ImageFolder(os.path.join(folder.name, part), transform)
    state["batch"] = batch
    state["learner"] = Learner(recipe, device, steps)


def workers(count, pinned):
    """Makes a DataLoader with so many worker processes, which stay from one epoch to the next."""
    state["loader"] = torch.utils.data.DataLoader(
        state["images"], state["batch"], shuffle=True, num_workers=count, persistent_workers=count > 0, pin_memory=pinned
    )


def epoch(steps=0):
    """Trains for an epoch, or so many steps of one, and returns images per second."""
    learner = state["learner"]
    images = 0
    began = time.perf_counter()
    for i, (pixels, labels) in enumerate(state["loader"]):
        pixels = pixels.to(learner.device, non_blocking=True, memory_format=torch.channels_last)
        learner.step(pixels, labels.to(learner.device, non_blocking=True))
        images += len(labels)
        if i + 1 == steps:
            break
    synchronize(learner.device)
    return {"images_per_second": images / (time.perf_counter() - began)}


if __name__ == "__main__":
    serve(prepare, workers, epoch)
