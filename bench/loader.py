"""PyTorch's usual way from a folder of images: ImageFolder, torchvision's transforms, DataLoader, without a model or with one."""

import multiprocessing
import os
import tarfile
import tempfile
import time

import torch
from torchvision import datasets, io, transforms
from torchvision.transforms import v2

from peer import serve, synchronize
from recipe import MEAN, RECIPES, STD, Learner

state = {}


def decoded(path):
    """An image decoded by torchvision."""
    return io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)


def prepare(archive, part, recipe, batch, decoder):
    """Prepares loading alone, with that decoder, pillow or torchvision; images become uint8 [3, H, W]."""
    crop = RECIPES[recipe].crop
    if decoder == "torchvision":
        crop = v2.RandomResizedCrop(crop.size, antialias=True)
        install(archive, part, batch, v2.Compose([crop, v2.RandomHorizontalFlip()]), loader=decoded)
    else:
        install(archive, part, batch, transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.PILToTensor()]))
    return {"images": len(state["images"])}


def prepare_training(archive, part, recipe, batch, device, steps):
    """Prepares loading for the recipe's model, which learns from each batch; steps is the length of the schedule."""
    recipe = RECIPES[recipe]
    install(archive, part, batch, transforms.Compose([
        recipe.crop,
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]))
    state["learner"] = Learner(recipe, device, steps)


def install(archive, part, batch, transform, **options):
    """Unpacks the archive, as users of ImageFolder do once."""
    torch.manual_seed(1)
    folder = tempfile.TemporaryDirectory(prefix="bench-images-")
    with tarfile.open(archive) as tar:
        tar.extractall(folder.name, filter="data")
    images = datasets.ImageFolder(os.path.join(folder.name, part), transform, **options)
    state.update(folder=folder, images=images, batch=batch)


def workers(count, pinned=False, drop_last=False):
    """Makes a DataLoader with so many worker processes, which stay from one epoch to the next."""
    state["loader"] = None  # ends the processes of the previous loader
    state["workers"] = count
    state["loader"] = torch.utils.data.DataLoader(
        state["images"], state["batch"], shuffle=True, num_workers=count, persistent_workers=count > 0, pin_memory=pinned, drop_last=drop_last
    )


def read(steps=0, watch=lambda: None):
    """Reads an epoch, or so many batches of one, and returns the number of images. A learner has learned from each of them."""
    learner = state.get("learner")
    images = 0
    for i, (pixels, labels) in enumerate(state["loader"]):
        if learner:
            pixels = pixels.to(learner.device, non_blocking=True, memory_format=torch.channels_last)
            learner.step(pixels, labels.to(learner.device, non_blocking=True))
        images += len(labels)
        if i % 8 == 0:
            watch()
        if i + 1 == steps:
            break
    if learner:
        synchronize(learner.device)
    return images


def epoch(steps=0):
    """Images per second of an epoch, or of so many batches of one."""
    began = time.perf_counter()
    images = read(steps)
    return {"images_per_second": images / (time.perf_counter() - began)}


def epochs(count):
    """Images per second of so many epochs, from the end of an epoch to the end of one."""
    if state["workers"]:  # without workers nothing is read ahead
        read()
    began = time.perf_counter()
    images = sum(read() for _ in range(count))
    seconds = time.perf_counter() - began
    if images != count * len(state["images"]):
        raise RuntimeError(f"{count} epochs had {images} images, want {count * len(state['images'])}")
    return {"images_per_second": images / seconds}


def first_and_later(processes, count, pinned, watched):
    """Images per second of a new DataLoader's first epoch, and of so many epochs after it; how many cores those kept busy.

    Where memory is watched, which takes time, also the most MiB that this process and the workers had after every eighth step.
    """
    seen = [0.0]
    watch = (lambda: seen.append(pss())) if watched else (lambda: None)
    synchronize(state["learner"].device)
    began = time.perf_counter()
    workers(processes, pinned, drop_last=True)
    images = read(watch=watch)
    first = images / (time.perf_counter() - began)
    cpu = cpu_time()
    began = time.perf_counter()
    images = sum(read(watch=watch) for _ in range(count))
    seconds = time.perf_counter() - began
    cores = (cpu_time() - cpu) / seconds
    state["loader"] = None
    return {"first": first, "later": images / seconds, "cores": cores, "peak": max(seen)}


def family():
    """Ids of this process and its workers."""
    return [os.getpid(), *(p.pid for p in multiprocessing.active_children())]


def cpu_time():
    """Seconds of processor time that this process and its workers have used."""
    ticks = 0
    for pid in family():
        with open(f"/proc/{pid}/stat") as line:
            fields = line.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss():
    """Memory of this process and its workers in MiB, shared memory counted once."""
    total = 0
    for pid in family():
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


if __name__ == "__main__":
    serve(prepare, prepare_training, workers, epoch, epochs, first_and_later)
