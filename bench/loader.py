"""PyTorch's usual way to load a folder of images, without a model: ImageFolder, torchvision's transforms, DataLoader."""

import time
import zlib

import torch
from torchvision import datasets, io, transforms
from torchvision.transforms import v2

from peer import pss, serve, unpacked

state = {}


def decoded(path):
    """An image decoded by torchvision."""
    return io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)


def prepare(archive, part, recipe, decoder, batch):
    """Unpacks the archive; images become uint8 [3, H, W]."""
    torch.manual_seed(1)
    state["folder"], folder = unpacked(archive, part)
    if decoder == "torchvision":
        crop = v2.RandomResizedCrop(224, antialias=True)
        state["images"] = datasets.ImageFolder(folder, v2.Compose([crop, v2.RandomHorizontalFlip()]), loader=decoded)
    elif recipe == "imagenet":
        steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        state["images"] = datasets.ImageFolder(folder, transforms.Compose(steps))
    else:
        steps = [transforms.RandomCrop(32, padding=4), transforms.PILToTensor()]
        state["images"] = datasets.ImageFolder(folder, transforms.Compose(steps))
    state["batch"] = batch
    return {"images": len(state["images"])}


def workers(count, pinned=False):
    """Makes a DataLoader with so many worker processes, which stay from one epoch to the next."""
    state["loader"] = None  # ends the processes of the one before
    state["workers"] = count
    state["loader"] = torch.utils.data.DataLoader(
        state["images"], state["batch"], shuffle=True, num_workers=count, persistent_workers=count > 0, pin_memory=pinned
    )


def read(steps=0, watch=lambda: None):
    """Reads an epoch, or so many batches of one, and returns the number of images."""
    images = 0
    for i, (pixels, labels) in enumerate(state["loader"]):
        images += len(labels)
        if i % 8 == 0:
            watch()
        if i + 1 == steps:
            break
    return images


def epoch(steps=0):
    """Images per second of an epoch, or of so many batches of one."""
    began = time.perf_counter()
    images = read(steps)
    return {"images_per_second": images / (time.perf_counter() - began)}


def epochs(count):
    """Images per second of so many epochs, from the end of an epoch to the end of one."""
    if state["workers"]:  # without, nothing is read ahead
        read()
    began = time.perf_counter()
    images = sum(read() for _ in range(count))
    seconds = time.perf_counter() - began
    if images != count * len(state["images"]):
        raise RuntimeError(f"{count} epochs had {images} images, want {count * len(state['images'])}")
    return {"images_per_second": images / seconds}


def memory(count):
    """Reads so many epochs; MiB of this process and the workers after the first and the last, and the most that was seen after every eighth batch."""
    seen = []
    after = []
    for _ in range(count):
        read(watch=lambda: seen.append(pss()))
        after.append(pss())
    return {"first": after[0], "resident": after[-1], "peak": max(seen + after)}


def inflate(archive):
    """Inflates a .tgz with zlib, as one stream; MB/s of its content."""
    with open(archive, "rb") as file:
        packed = file.read()
    stream, size, at = zlib.decompressobj(31), 0, 0
    began = time.perf_counter()
    while at < len(packed):
        size += len(stream.decompress(memoryview(packed)[at : at + (1 << 20)]))
        at += 1 << 20
    return {"megabytes_per_second": size / 1e6 / (time.perf_counter() - began), "size": size}


if __name__ == "__main__":
    serve(prepare, workers, epoch, epochs, memory, inflate)
