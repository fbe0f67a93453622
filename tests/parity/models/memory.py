"""Prints, as JSON, what torchvision models allocate through LibTorch, in bytes, model and images included:

held      when a forward pass in training and its loss are done, for backward to use
train     the peak of a training step: forward, cross entropy, backward into fresh gradients
evaluate  the peak of a forward pass in evaluation, without gradients

memory.py LIBCGOTORCH DEVICE MODEL BATCH SIZE [MODEL BATCH SIZE ...] counts with the library, as Go does.

testdata/memory.json: OMP_NUM_THREADS=1 python memory.py build/lib/libcgotorch.so cpu resnet50 4 64 mobilenet_v2 4 64
"""
import ctypes
import gc
import json
import sys

import torch
import torchvision


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("allocated", "peak", "reserved", "allocations")]


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


library = ctypes.CDLL(sys.argv[1])
library.ct_memory_stats.argtypes = [Device, ctypes.POINTER(Memory)]
library.ct_memory_reset_peak.argtypes = [Device]
torch_device = torch.device(sys.argv[2])
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # kernels with TF32 use other workspaces
device = Device(int(torch_device.type == "cuda"), 0)


def memory():
    counts = Memory()
    assert not library.ct_memory_stats(device, ctypes.byref(counts))
    return counts


def peak_of(fn):
    fn()
    gc.collect()
    assert not library.ct_memory_reset_peak(device)
    fn()
    return memory().peak


def measure(name, batch, size):
    before = memory().allocated
    model = torchvision.models.get_model(name).to(torch_device)
    images = torch.zeros(batch, 3, size, size, device=torch_device)
    labels = torch.zeros(batch, dtype=torch.int64, device=torch_device)
    held = []

    def step():
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        held[:] = [memory().allocated]
        loss.backward()

    def evaluate():
        with torch.no_grad():
            model(images)

    train = peak_of(step)
    model.zero_grad()
    model.eval()
    counts = {"held": held[0], "train": train, "evaluate": peak_of(evaluate)}
    return {"model": name, "batch": batch, "size": size} | {what: bytes - before for what, bytes in counts.items()}


memory()  # this call starts the counter
cases = zip(sys.argv[3::3], map(int, sys.argv[4::3]), map(int, sys.argv[5::3]))
print("[" + ",\n".join(json.dumps(measure(*case)) for case in cases) + "]")
