"""Training steps in PyTorch eager, on batches that are there already: their time, their peak memory, their losses."""

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


def prepare_counted(device, batch, autocast):
    """Makes ResNet-50, an optimizer and a batch on the device."""
    state["autocast"] = autocast
    state["model"] = resnet50().to(device, memory_format=torch.channels_last)
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1, momentum=0.9, fused=True)
    state["images"] = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    state["labels"] = torch.randint(1000, (batch,), device=device)
    state["device"] = device


def counted(training):
    """Runs a step, or without training a forward pass and its loss, and returns the peak of allocated bytes; 0 on the CPU."""
    if state["device"].startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    state["optimizer"].zero_grad(set_to_none=True)
    with torch.set_grad_enabled(training), torch.autocast(state["device"].split(":")[0], torch.bfloat16, enabled=state["autocast"]):
        logits = state["model"](state["images"])
        loss = nn.functional.cross_entropy(logits, state["labels"])
    if training:
        loss.backward()
        state["optimizer"].step()
    loss.item()
    return {"peak": torch.cuda.max_memory_allocated()}


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


if __name__ == "__main__":
    serve(prepare, block, prepare_counted, counted, train)
