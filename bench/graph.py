"""Training and inference in PyTorch on a batch that stays on the device: eager, in a CUDA graph, compiled. And exports of the models.

A model is one of torchvision's by its name, or bert: BERT-base, of texts of 128 tokens, which needs transformers.
"""

import gc
import pathlib

import torch
from safetensors.torch import save_file
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


def prepare_inference(*, model, batch, device, mode):
    """Replaces what was prepared by a call of a model in evaluation mode with so many inputs, and warms it up.

    mode is one of MODES, on CUDA only except for eager.
    """
    clear(device, mode)
    images = resident(model, batch, device, dtype_of(device))
    forward = in_mode(made(model, device, dtype_of(device)).eval(), mode)
    with torch.inference_mode():
        install(lambda: forward(images), mode)


@torch.inference_mode()
def inference_block(*, calls):
    """Microseconds per call, of so many between two synchronisations."""
    return {"microseconds": seconds(state["device"], state["run"], calls) * 1e6}


@torch.no_grad()
def export(*, folder, model, batches, device):
    """Writes MODEL.pt2, which takes up to 64 inputs, and for each batch MODEL-BATCH.safetensors with an input and the eager output."""
    clear(device, "eager")
    network, folder = made(model, device, dtype_of(device)).eval(), pathlib.Path(folder)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):  # at first these norms change nothing, so that errors would not show
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
    for batch in batches:
        images = resident(model, batch, device, dtype_of(device))
        save_file({"input": images.contiguous(), "output": network(images).contiguous()}, folder / f"{model}-{batch}.safetensors")
    several = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(network, (resident(model, 2, device, dtype_of(device)),), dynamic_shapes=(several,))
    torch.export.save(program, folder / f"{model}.pt2")


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


def dtype_of(device):
    return torch.bfloat16 if device.startswith("cuda") else torch.float32


class Encoder(nn.Module):
    """The states of the last layer of BERT, for texts without padding."""

    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(BertConfig(), add_pooling_layer=False)

    def forward(self, ids):
        return self.bert(input_ids=ids).last_hidden_state


def made(model, device, dtype):
    if model == "bert":
        return Encoder().to(device, dtype)
    return models.get_model(model, weights=None, num_classes=CLASSES).to(device, dtype, memory_format=torch.channels_last)


def resident(model, batch, device, dtype):
    """Random texts int64 [batch, 128], or images [batch, 3, size, size] of the model's size, channels last."""
    if model == "bert":
        return torch.randint(100, (batch, 128), device=device)
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
    serve(prepare_train, train_block, train_memory, prepare_inference, inference_block, export)
