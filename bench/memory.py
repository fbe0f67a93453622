"""Peak memory of a ResNet-50 step in PyTorch, counted as the other side counts its own."""

import ctypes

import torch
from torch import nn
from torchvision.models import resnet50

from peer import serve


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


state = {}


def prepare(library, device, batch, autocast):
    """Counts from here on; then makes the model, the optimizer and a batch on the device."""
    state["counter"] = CUDACounter() if device.startswith("cuda") else CPUCounter(library)
    state["autocast"] = autocast
    state["model"] = resnet50().to(device, memory_format=torch.channels_last)
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1, momentum=0.9, fused=True)
    state["images"] = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    state["labels"] = torch.randint(1000, (batch,), device=device)
    state["device"] = device


def step(training):
    """Runs a step and returns the peak during it."""
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


if __name__ == "__main__":
    serve(prepare, step)
