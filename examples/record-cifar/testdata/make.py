"""Writes reference.json, with the Python of bench/environment.sh: a short training by bench/record_cifar.py on the CPU.

It trains on the first images of examples/train/data/cifar10-10k.tgz. trainer_test.go does the same training.
"""

import json
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.join(here, "..", "..", "..")
sys.path.insert(0, os.path.join(root, "bench"))
import record_cifar

data = os.path.join(root, "examples", "train", "data", "cifar10-10k.tgz")
o = record_cifar.flags(["--data", data, "--device", "cpu", "--seed", "3", "--widths", "8,16,8", "--batch", "50", "--epochs", "5.5", "--lr", "60"])
readers = [record_cifar.Reader(data, part, 2) for part in ("train", "test")]

import torch

record_cifar.torch = torch
torch.manual_seed(o.seed)
(pixels, labels), (tested, _) = (r.wait(150) for r in readers)
run = record_cifar.Run(o, torch.device("cpu"), pixels, labels)
losses = []
for step in range(run.steps):
    run.once(step)
    losses.append(run.loss.item() / o.batch)
run.net.eval()


def sums(tensors):
    """The sum and the sum of squares of each tensor."""
    return [[t.sum().item(), t.square().sum().item()] for t in tensors]


with open(os.path.join(here, "reference.json"), "w") as f:
    json.dump({
        "losses": losses,
        "parameters": sums(run.net.parameters()),
        "statistics": sums(t for m in run.norms for t in (m.running_mean, m.running_var)),
        "logits": run.logits(tested[:4], 2).flatten().tolist(),
    }, f)
    f.write("\n")
