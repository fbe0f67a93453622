"""Writes python.safetensors, the state dict of a small trained model, and logits.safetensors, what that model computes.

    python make.py           # needs torch 2.11.0 and safetensors
    python make.py FILE      # loads a checkpoint of ours of that model and prints its logits of the same images
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn

HERE = pathlib.Path(__file__).parent


def make():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, (3, 1), stride=2, groups=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def write():
    torch.manual_seed(3)
    model = make()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        opt.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 3, 9, 8) + 1), torch.randint(5, (8,))).backward()
        opt.step()
    images = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        logits = model.eval()(images)
    save_file(model.state_dict(), HERE / "python.safetensors")
    save_file({"images": images, "logits": logits}, HERE / "logits.safetensors")


def show(path):
    model = make().eval()
    model.load_state_dict({k: v for k, v in load_file(path).items() if "/" not in k})
    io = load_file(HERE / "logits.safetensors")
    with torch.no_grad():
        print(model(io["images"]).tolist())
    print("largest difference to logits.safetensors:", (model(io["images"]) - io["logits"]).abs().max().item())


write() if len(sys.argv) == 1 else show(sys.argv[1])
