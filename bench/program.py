"""Inference of exported models in PyTorch: eager, in a CUDA graph, by torch.compile, by AOTInductor, and node by node.

The requests export, compile and package write files into a folder, which this library reads too. Each of them may run in a process of its
own. The files of a model are MODEL.pt2, which is the program, and for each batch MODEL-BATCH.safetensors with an input and the output,
and MODEL-BATCH.package.pt2, which AOTInductor has compiled. The folder cache has what torch.compile has compiled.
"""

import gc
import pathlib
import time

import torch
from safetensors.torch import load_file, save_file
from torch.export import Dim
from torchvision import models

from peer import seconds, serve, synchronize

WARM_UP = 5  # number of runs; a capture needs three, and the graphs of torch.compile need two
TOKENS = 128  # of each text
MOST = 64  # the largest batch of a program

# graph is the eager model in a CUDA graph. compile is torch.compile in mode reduce-overhead. aoti is a package of AOTInductor. module is
# the exported program as PyTorch runs it, and module graph the same in a CUDA graph.
MODES = ("eager", "graph", "compile", "aoti", "module", "module graph")

state = {}


class Encoder(torch.nn.Module):
    """The states of the last layer of BERT, for texts without padding."""

    def __init__(self, small):
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        self.bert = BertModel(BertConfig(**sizes if small else {}), add_pooling_layer=False)

    def forward(self, ids):
        return self.bert(input_ids=ids).last_hidden_state


def small_model(name):
    """A model of the same architecture with few layers."""
    if name == "resnet50":
        return models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1])
    if name == "efficientnet_b0":
        block = models.efficientnet.MBConvConfig
        return models.EfficientNet([block(1, 3, 1, 16, 8, 1), block(6, 3, 2, 8, 16, 2), block(6, 5, 2, 16, 24, 1)], 0.2, last_channel=64)
    if name == "convnext_tiny":
        block = models.convnext.CNBlockConfig
        return models.ConvNeXt([block(16, 32, 1), block(32, None, 2)])
    if name == "vit_b_16":
        return models.VisionTransformer(64, 16, 2, 2, 32, 64)
    if name == "swin_t":
        return models.SwinTransformer([4, 4], 32, [2, 2], [1, 2], [4, 4])
    raise ValueError(f"there is no small model {name}")


def made(model, device, small):
    """The model in evaluation mode, with random weights that depend on the device alone: bfloat16 on CUDA, float32 on the CPU."""
    torch.manual_seed(1)
    with torch.device(device):
        if model == "bert":
            return Encoder(small).to(dtype_of(device)).eval()
        network = small_model(model) if small else models.get_model(model, weights=None)
        if model == "vit_b_16":
            torch.nn.init.normal_(network.heads.head.weight)  # torchvision begins with zeros, and so with equal results for all images
        for norm in network.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):  # at first these norms change nothing, so that errors would not show
                norm.running_mean.normal_(0, 0.1)
                norm.running_var.uniform_(0.5, 1.5)
                torch.nn.init.normal_(norm.bias, 0, 0.1)
    return network.to(dtype_of(device), memory_format=torch.channels_last).eval()


def dtype_of(device):
    return torch.bfloat16 if device.startswith("cuda") else torch.float32


def resident(model, batch, device, small):
    """A random input on the device."""
    torch.manual_seed(2)
    if model == "bert":
        return torch.randint(100, (batch, TOKENS), device=device)
    side = 64 if small else 224
    return torch.randn(batch, 3, side, side, device=device).to(dtype_of(device), memory_format=torch.channels_last)


@torch.no_grad()
def export(*, folder, model, batches, device, small):
    """Writes the program, and for each batch an input and the output of the eager model. Returns the seconds of the export."""
    network, folder = made(model, device, small), pathlib.Path(folder)
    for batch in batches:
        images = resident(model, batch, device, small)
        save_file({"input": images.contiguous(), "output": network(images).contiguous()}, folder / f"{model}-{batch}.safetensors")
    began = time.perf_counter()
    exported = torch.export.export(network, (resident(model, 2, device, small),), dynamic_shapes=({0: Dim("batch", min=1, max=MOST)},))
    torch.export.save(exported, folder / f"{model}.pt2")
    return {"seconds": time.perf_counter() - began}


def compile(*, folder, model, batch, device, small, workers):
    """Fills the cache of torch.compile, and returns the seconds. The choice of a kernel's tiles is not kept, because other work may run on
    the device."""
    began = time.perf_counter()
    use(folder, workers)
    torch._inductor.config.autotune_local_cache = False
    prepare(folder=folder, model=model, batch=batch, device=device, small=small, mode="compile")
    return {"seconds": time.perf_counter() - began}


@torch.no_grad()
def package(*, folder, model, batch, device, small, workers):
    """Exports the model for the batch, compiles it with AOTInductor, and returns the seconds."""
    began = time.perf_counter()
    use(folder, workers)
    torch._inductor.config.cpp.cxx = (None, str(compiler(folder)))
    exported = torch.export.export(made(model, device, small), (resident(model, batch, device, small),))
    torch._inductor.aoti_compile_and_package(
        exported, package_path=str(pathlib.Path(folder) / f"{model}-{batch}.package.pt2"),
        inductor_configs={"aot_inductor.metadata": {"torch_version": torch.__version__}})
    return {"seconds": time.perf_counter() - began}


def use(folder, workers=0):
    """Makes the folder that of torch.compile's cache."""
    import os

    import torch._inductor.config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(pathlib.Path(folder) / "cache")
    if workers:
        torch._inductor.config.compile_threads = workers


# What a package does with the name of its device, without <regex>.
PARSE = """
  const size_t colon = device_str.find(':');
  const std::string kind = device_str.substr(0, colon);
  AOTI_RUNTIME_CHECK(kind == "cpu" || kind == "cuda", "Invalid device: " + device_str);
  device_type = kind == "cpu" ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  device_idx = colon == std::string::npos ? -1 : stoi(device_str.substr(colon + 1));
}
"""


def compiler(folder):
    """A g++ for AOTInductor's libraries, with a header of LibTorch's that does not use <regex>.

    Libraries that the g++ 13 of Ubuntu 24.04 compiles with it crash in std::regex when PyTorch 2.11 opens them.
    """
    at = "torch/csrc/inductor/aoti_runtime/model_base.h"
    text = (pathlib.Path(torch.__file__).parent / "include" / at).read_text()
    begin = text.index("  std::regex re(")
    end = text.index("\n}\n", begin) + len("\n}\n")
    headers = pathlib.Path(folder) / "headers"
    header = headers / at
    if not header.exists():
        header.parent.mkdir(parents=True, exist_ok=True)
        replace(header, text[:begin].replace("<regex>", "<functional>\n#include <memory>\n#include <string>") + PARSE.lstrip("\n") + text[end:])
    script = headers / "g++"
    if not script.exists():
        replace(script, f'#!/bin/sh\nexec g++ "-I{headers}" "$@"\n', mode=0o755)
    return script


def replace(path, text, mode=0o644):
    """Writes a file that other processes may write too."""
    import os

    other = path.with_suffix(f".{os.getpid()}")
    other.write_text(text)
    other.chmod(mode)
    other.rename(path)


def prepare(*, folder, model, batch, device, small, mode):
    """Replaces what was prepared by a call of the model in this mode, and warms it up.

    Returns how far the result is from that of export: the largest difference of all elements, as a part of the largest element. And how
    many graphs came from the cache of torch.compile.
    """
    clear(device, mode)
    use(folder)
    folder = pathlib.Path(folder)
    images = resident(model, batch, device, small)
    if mode == "aoti":
        network = torch._inductor.aoti_load_package(str(folder / f"{model}-{batch}.package.pt2"))
    elif mode.startswith("module"):
        network = torch.export.load(folder / f"{model}.pt2").module()
    else:
        network = made(model, device, small)
    if mode == "compile":
        network = compiled(network)
    with torch.inference_mode():
        output = install(lambda: network(images), mode)
        stored = folder / f"{model}-{batch}.safetensors"
        if not stored.exists():
            return {}
        want = load_file(stored)["output"].float()
        difference = float((output.float().cpu() - want).abs().max() / want.abs().max())
    return {"difference": difference, "cached": torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]}


def compiled(network):
    """The network as torch.compile makes it. A call ends the life of what the call before returned."""
    fast = torch.compile(network, mode="reduce-overhead", dynamic=False)

    def forward(images):
        torch.compiler.cudagraph_mark_step_begin()
        return fast(images)

    return forward


def install(work, mode):
    """Warms work up, makes it what the blocks run, and returns a result."""
    state["work"] = work  # keeps the tensors that a graph reads and writes
    if not mode.endswith("graph"):
        for _ in range(WARM_UP):
            output = work()
        state["run"] = work
        return output
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        state["output"] = work()
    state.update(graph=graph, run=graph.replay)
    graph.replay()
    return state["output"]


@torch.inference_mode()
def block(*, calls):
    """Microseconds per call, of so many between two synchronisations."""
    return {"microseconds": seconds(state["device"], state["run"], calls) * 1e6}


def clear(device, mode):
    """Drops what was prepared with the memory that it had."""
    if mode not in MODES:
        raise ValueError(f"mode {mode} is none of {', '.join(MODES)}")
    if mode.endswith("graph") and not device.startswith("cuda"):
        raise ValueError(f"mode {mode} needs a CUDA device, not {device}")
    synchronize(device)
    state.clear()
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    state["device"] = device


if __name__ == "__main__":
    serve(export, compile, package, prepare, block)
