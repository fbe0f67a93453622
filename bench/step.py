"""A training step of a recipe in PyTorch eager, on a batch that stays on the device."""

import time

import torch

from peer import serve, synchronize
from recipe import RECIPES, Learner

state = {}


def prepare(recipe, batch, size, device):
    torch.manual_seed(1)
    recipe = RECIPES[recipe]
    state["learner"] = Learner(recipe, device, 1_000_000)
    state["images"] = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    state["labels"] = torch.randint(recipe.classes, (batch,), device=device)


def block(steps):
    """Milliseconds per step."""
    learner = state["learner"]
    synchronize(learner.device)
    began = time.perf_counter()
    for _ in range(steps):
        learner.step(state["images"], state["labels"])
    synchronize(learner.device)
    return {"milliseconds": (time.perf_counter() - began) * 1e3 / steps}


if __name__ == "__main__":
    serve(prepare, block)
