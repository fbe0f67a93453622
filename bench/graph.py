"""Training and inference of torchvision's models in PyTorch on a batch that stays on the device: eager, in a CUDA graph, compiled."""

import gc
import statistics
import time

import torch
from torch import nn
from torchvision import models

from peer import seconds, serve, synchronize

CLASSES = 1000
SIZES = {"inception_v3": 299}  # other models have 224
WARM_UP = 5  # number of runs; a capture needs three, and the graphs of torch.compile need two

# compile is torch.compile in mode reduce-overhead, which has graphs of its own. compile graph is torch.compile in its default mode, and
# the whole step in a CUDA graph.
MODES = ("eager", "graph", "compile", "compile graph")
CAPTURED = ("graph", "compile graph")

state = {}


def prepare_train(*, model, batch, device, mode, autocast):
    """Replaces what was prepared by a training step of so many images, and warms it up.

    model is a name of torchvision's; mode is one of MODES, on CUDA only except for eager. Weights and images are float32. With autocast,
    the step calculates in bfloat16.
    """
    clear(device, mode)
    network = made(model, device, torch.float32)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    criterion = nn.CrossEntropyLoss()
    images = resident(model, batch, device, torch.float32)
    labels = torch.randint(CLASSES, (batch,), device=device)
    lowered = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=autocast, cache_enabled=mode not in CAPTURED)
    forward = in_mode(network, mode)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with lowered:
            loss = criterion(forward(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # If gradients are None when the capture begins, the graph allocates them in its own memory.
    install(step, mode, before_capture=lambda: optimizer.zero_grad(set_to_none=True))


def train_block(*, steps):
    """Milliseconds per step, of so many between two synchronisations."""
    return {"milliseconds": seconds(state["device"], state["run"], steps) * 1e3}


def train_memory():
    """The most bytes allocated and reserved since preparation began, warm-up and capture included; 0 on the CPU."""
    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def launch(*, count):
    """Microseconds until a replay of the graph returns to the host while the device is busy with another: the median of so many."""
    if "graph" not in state:
        raise RuntimeError("launch needs mode graph")
    replay = state["run"]
    nanoseconds = []
    for _ in range(count):
        torch.cuda.synchronize()  # otherwise launches could wait for room in the device's queue
        replay()
        began = time.perf_counter_ns()
        replay()
        nanoseconds.append(time.perf_counter_ns() - began)
    torch.cuda.synchronize()
    return {"microseconds": statistics.median(nanoseconds) / 1e3}


def prepare_inference(*, model, batch, device, mode):
    """Replaces what was prepared by a call of a bfloat16 model in evaluation mode with so many images, and warms it up.

    model is a name of torchvision's; mode is one of MODES, on CUDA only except for eager.
    """
    clear(device, mode)
    images = resident(model, batch, device, torch.bfloat16)
    state.update(input=images, source=resident(model, batch, device, torch.bfloat16))
    forward = in_mode(made(model, device, torch.bfloat16).eval(), mode)
    with torch.inference_mode():
        install(lambda: forward(images), mode)


@torch.inference_mode()
def inference_block(*, calls, copy):
    """Microseconds per call, of so many between two synchronisations.

    With copy, each call first copies another batch on the device into the one that the model reads, which is the graph's static input.
    """
    run, static, source = state["run"], state["input"], state["source"]

    def copy_and_run():
        static.copy_(source)
        run()

    return {"microseconds": seconds(state["device"], copy_and_run if copy else run, calls) * 1e6}


def clear(device, mode):
    """Drops what was prepared with the memory that it had, and counts the peaks of memory from here on."""
    if mode not in MODES:
        raise ValueError(f"mode {mode} is none of {', '.join(MODES)}")
    if mode != "eager" and not device.startswith("cuda"):
        raise ValueError(f"mode {mode} needs a CUDA device, not {device}")
    synchronize(device)
    state.clear()
    torch.compiler.reset()
    gc.collect()
    if device.startswith("cuda"):
        torch._C._cuda_clearCublasWorkspaces()  # each stream has a workspace, which empty_cache does not free
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    state["device"] = device


def made(model, device, dtype):
    return models.get_model(model, weights=None, num_classes=CLASSES).to(device, dtype, memory_format=torch.channels_last)


def resident(model, batch, device, dtype):
    """Random images [batch, 3, size, size] of the model's size, channels last."""
    size = SIZES.get(model, 224)
    return torch.empty(batch, 3, size, size, device=device, dtype=dtype, memory_format=torch.channels_last).normal_()


def in_mode(network, mode):
    """The network as the mode calls it. Where compiled, a call ends the life of what the call before returned."""
    if mode == "compile graph":
        return torch.compile(network)
    if mode != "compile":
        return network
    compiled = torch.compile(network, mode="reduce-overhead")

    def forward(images):
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(images)

    return forward


def install(work, mode, before_capture=lambda: None):
    """Warms work up and makes it what the blocks run, captured where the mode says so."""
    state["work"] = work  # keeps the tensors that a graph reads and writes
    if mode not in CAPTURED:
        repeat(work, WARM_UP)
        state["run"] = work
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        repeat(work, WARM_UP)
    torch.cuda.current_stream().wait_stream(stream)
    before_capture()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        state["output"] = work()
    state.update(graph=graph, run=graph.replay)


def repeat(work, times):
    for _ in range(times):
        work()


if __name__ == "__main__":
    serve(prepare_train, train_block, train_memory, launch, prepare_inference, inference_block)
