"""PyTorch's usual way to train on a folder of images: ImageFolder, Pillow, torchvision's transforms, DataLoader."""

import time

import torch
from torchvision import datasets, transforms

from peer import cpu_time, pss, serve, synchronize, unpacked
from recipe import MEAN, RECIPES, STD, Learner

state = {}


def prepare(archive, part, recipe, batch, device, steps):
    """Unpacks the archive, as users of ImageFolder do once, and makes the model."""
    torch.manual_seed(1)
    recipe = RECIPES[recipe]
    state["folder"], folder = unpacked(archive, part)
    transform = transforms.Compose([
        recipe.crop,
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])
    state["images"] = datasets.ImageFolder(folder, transform)
    state["batch"] = batch
    state["learner"] = Learner(recipe, device, steps)


def workers(count, pinned, drop_last=False):
    """Makes a DataLoader with so many worker processes, which stay from one epoch to the next."""
    state["loader"] = None  # ends the processes of the one before
    state["loader"] = torch.utils.data.DataLoader(
        state["images"], state["batch"], shuffle=True, num_workers=count, persistent_workers=count > 0, pin_memory=pinned, drop_last=drop_last
    )


def train(steps=0, watch=lambda: None):
    """Trains for an epoch, or so many steps of one, waits for the device and returns the number of images."""
    learner = state["learner"]
    images = 0
    for i, (pixels, labels) in enumerate(state["loader"]):
        pixels = pixels.to(learner.device, non_blocking=True, memory_format=torch.channels_last)
        learner.step(pixels, labels.to(learner.device, non_blocking=True))
        images += len(labels)
        if i % 8 == 0:
            watch()
        if i + 1 == steps:
            break
    synchronize(learner.device)
    return images


def epoch(steps=0):
    """Images per second of an epoch, or of so many steps of one."""
    began = time.perf_counter()
    images = train(steps)
    return {"images_per_second": images / (time.perf_counter() - began)}


def epochs(processes, count, pinned, watched):
    """Images per second of a new DataLoader's first epoch, and of so many epochs after it; how many cores those kept busy.

    Where memory is watched, which takes time, also the most that this process and the workers had after every eighth step, in MiB.
    """
    seen = [0.0]
    watch = (lambda: seen.append(pss())) if watched else (lambda: None)
    synchronize(state["learner"].device)
    began = time.perf_counter()
    workers(processes, pinned, drop_last=True)
    images = train(watch=watch)
    first = images / (time.perf_counter() - began)
    cpu = cpu_time()
    began = time.perf_counter()
    images = sum(train(watch=watch) for _ in range(count))
    seconds = time.perf_counter() - began
    cores = (cpu_time() - cpu) / seconds
    state["loader"] = None
    return {"first": first, "later": images / seconds, "cores": cores, "peak": max(seen)}


if __name__ == "__main__":
    serve(prepare, workers, epoch, epochs)
