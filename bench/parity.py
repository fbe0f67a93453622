"""Losses and gradients in PyTorch eager, of the other side's weights and pictures."""

import hashlib
import types

import numpy
import torch
from safetensors.torch import save_file
from torchvision import models

from peer import serve
from recipe import Learner, ResNet20, normalize

state = {}


def pictures(*, pixels, labels, indices, flips, batch, size, device):
    """Reads the files of uint8 NHWC pixels, int64 labels, and int64 indices and bool flips of each step. Returns a digest of the images."""
    images = normalize(torch.from_numpy(numpy.fromfile(pixels, numpy.uint8)).view(-1, size, size, 3)).permute(0, 2, 3, 1).contiguous()
    state["images"] = images.to(device)
    state["labels"] = torch.from_numpy(numpy.fromfile(labels, numpy.int64)).to(device)
    state["indices"] = torch.from_numpy(numpy.fromfile(indices, numpy.int64)).view(-1, batch).to(device)
    state["flips"] = torch.from_numpy(numpy.fromfile(flips, numpy.bool_)).view(-1, batch, 1, 1, 1).to(device)
    return {"digest": hashlib.sha256(images.numpy()).hexdigest()}


def batch_of(step):
    """The images of a step, float32 NCHW channels last, and their labels."""
    indices = state["indices"][step]
    chosen = state["images"].index_select(0, indices)
    images = torch.where(state["flips"][step], chosen.flip(2), chosen)
    return images.permute(0, 3, 1, 2), state["labels"].index_select(0, indices)


def made(model, classes):
    return ResNet20(classes) if model == "resnet20" else models.get_model(model, weights=None, num_classes=classes)


def prepare(*, model, classes, lr, decay, steps, weights, autocast, device):
    """Makes the model of that name from the other side's weights; steps is the length of the schedule."""
    recipe = types.SimpleNamespace(model=lambda num_classes: made(model, num_classes), classes=classes, lr=lr, decay=decay, autocast=autocast)
    state["learner"] = Learner(recipe, device, steps, weights)
    state["learner"].autocast = autocast  # on the CPU too


def train(*, steps):
    """Trains on the batches of the first steps and returns their losses."""
    losses = [state["learner"].step(*batch_of(step)) for step in range(steps)]
    return {"losses": torch.stack(losses).double().tolist()}


def gradients(*, step, autocast, channels_last, path):
    """Writes the gradients of a step's batch to a file. The weights stay as they are."""
    learner = state["learner"]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    learner.autocast = autocast
    learner.model.to(memory_format=layout)
    images, labels = batch_of(step)
    learner.backward(images.contiguous(memory_format=layout), labels)
    save_file({name: p.grad.contiguous().cpu() for name, p in learner.model.named_parameters()}, path)


if __name__ == "__main__":
    serve(pictures, prepare, train, gradients)
