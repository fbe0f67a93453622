"""Training steps in PyTorch eager, on batches that are there already: their time, their peak memory, their losses."""

import ctypes

import numpy
import torch
from torch import nn
from torchvision.models import resnet50

from peer import seconds, serve
from recipe import CIFAR, RECIPES, Learner, normalize

state = {}


def prepare(recipe, batch, size, device):
    """Makes a recipe's learner and a batch that stays on the device."""
    torch.manual_seed(1)
    recipe = RECIPES[recipe]
    state["learner"] = Learner(recipe, device, 1_000_000)
    state["images"] = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    state["labels"] = torch.randint(recipe.classes, (batch,), device=device)


def block(steps):
    """Milliseconds per step."""
    learner = state["learner"]
    return {"milliseconds": seconds(learner.device, lambda: learner.step(state["images"], state["labels"]), steps) * 1e3}


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("allocated", "peak_allocated", "reserved", "allocations")]


class CPUCounter:
    """The counter in libcgotorch.so, which wraps the allocator of the LibTorch that is in this process already."""

    def __init__(self, library):
        self.core = ctypes.CDLL(library)
        self.core.ct_memory_stats.restype = self.core.ct_memory_reset_peak.restype = ctypes.c_void_p
        self.core.ct_memory_stats.argtypes = [Device, ctypes.POINTER(Memory)]
        self.core.ct_memory_reset_peak.argtypes = [Device]
        self.peak()

    def peak(self):
        memory = Memory()
        if self.core.ct_memory_stats(Device(0, 0), ctypes.byref(memory)):
            raise RuntimeError("ct_memory_stats failed")
        return memory.peak_allocated

    def reset(self):
        self.core.ct_memory_reset_peak(Device(0, 0))


class CUDACounter:
    peak = staticmethod(torch.cuda.max_memory_allocated)
    reset = staticmethod(torch.cuda.reset_peak_memory_stats)


def prepare_counted(library, device, batch, autocast):
    """Counts memory from here on; then makes ResNet-50, an optimizer and a batch on the device."""
    state["counter"] = CUDACounter() if device.startswith("cuda") else CPUCounter(library)
    state["autocast"] = autocast
    state["model"] = resnet50().to(device, memory_format=torch.channels_last)
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1, momentum=0.9, fused=True)
    state["images"] = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    state["labels"] = torch.randint(1000, (batch,), device=device)
    state["device"] = device


def counted(training):
    """Runs a step, or without training a forward pass and its loss, and returns the peak of allocated bytes."""
    state["counter"].reset()
    state["optimizer"].zero_grad(set_to_none=True)
    with torch.set_grad_enabled(training), torch.autocast(state["device"].split(":")[0], torch.bfloat16, enabled=state["autocast"]):
        logits = state["model"](state["images"])
        loss = nn.functional.cross_entropy(logits, state["labels"])
    if training:
        loss.backward()
        state["optimizer"].step()
    loss.item()
    return {"peak": state["counter"].peak()}


def batches(path, sizes, device):
    """Reads the other side's batches of uint8 NHWC pixels, int64 labels and flips, and yields images and labels."""
    with open(path, "rb") as file:
        for n in sizes:
            pixels = torch.from_numpy(numpy.fromfile(file, numpy.uint8, n * 32 * 32 * 3)).view(n, 32, 32, 3)
            labels = torch.from_numpy(numpy.fromfile(file, numpy.int64, n))
            flips = torch.from_numpy(numpy.fromfile(file, numpy.bool_, n))
            images = normalize(torch.where(flips.view(n, 1, 1, 1), pixels.flip(2), pixels))
            yield images.to(device, memory_format=torch.channels_last), labels.to(device)


def train(weights, path, sizes, steps, device):
    """Trains CIFAR's recipe from the other side's weights on every batch. Returns the losses; steps is the length of the schedule."""
    state["learner"] = learner = Learner(CIFAR, device, steps, weights)
    losses = [learner.step(images, labels) for images, labels in batches(path, sizes, device)]
    return {"losses": torch.stack(losses).double().tolist()}


def test(path, sizes, device):
    """The share of images whose label the trained learner puts first."""
    return {"top1": state["learner"].top1(batches(path, sizes, device))}


if __name__ == "__main__":
    serve(prepare, block, prepare_counted, counted, train, test)
