"""A training step of torchvision's models in PyTorch on one GPU, or with DistributedDataParallel on several."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torchvision import models

from peer import seconds, serve

state = {}


def prepare(*, mode, model, batch, cuda):
    """Warms up a step. mode is one, or how DistributedDataParallel runs: eager, graph (captured by hand) or compile."""
    rank = int(os.environ.get("RANK", "0"))
    device = f"cuda:{rank}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    if mode != "one":
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # its thread disturbs captures
        dist.init_process_group("nccl" if cuda else "gloo", device_id=torch.device(device) if cuda else None)
    torch.manual_seed(1)
    network = models.get_model(model, weights=None, num_classes=1000).to(device, memory_format=torch.channels_last)
    side = torch.cuda.Stream() if cuda else None
    if mode == "graph":
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            network = nn.parallel.DistributedDataParallel(network, device_ids=[rank])
    elif mode != "one":
        network = nn.parallel.DistributedDataParallel(network, device_ids=[rank] if cuda else None)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    criterion = nn.CrossEntropyLoss()
    images = torch.empty(batch, 3, 224, 224, device=device).normal_().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=device)
    captured = cuda and mode in ("one", "graph")
    lowered = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=cuda, cache_enabled=not captured)
    forward = torch.compile(network) if mode == "compile" else network

    def step():
        optimizer.zero_grad(set_to_none=True)
        with lowered:
            loss = criterion(forward(images), labels)
        loss.backward()
        optimizer.step()

    state.update(device=device, run=step, keep=(images, labels, network, optimizer))
    if not captured:
        for _ in range(12 if cuda else 2):
            step()
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(12):  # a capture of DistributedDataParallel needs 11
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    state.update(run=graph.replay, graph=graph)


def block(*, steps):
    """Milliseconds per step, of so many between two synchronisations."""
    return {"milliseconds": seconds(state["device"], state["run"], steps) * 1e3}


if __name__ == "__main__":
    serve(prepare, block)
