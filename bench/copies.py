"""Copies from host memory beside matrix products, in PyTorch, by hand.

Each request runs a warm-up of its own, then one block between two synchronisations.
On the CPU a stream and an event do nothing, pinned memory is memory, and a copy is done when it returns.
"""

import contextlib
import time

import torch

from peer import seconds, serve


@torch.inference_mode()
def overlap(*, pinned, order, device, n, count, bytes):
    """count float32 products of n x n on the current stream, and a copy to the device on a side stream.

    order is kernels or copy: that half is enqueued first. Returns milliseconds of the products alone (compute), of the copy alone
    (copy) and of both. issue_microseconds is the time that the host takes to enqueue the copy where both run. hidden is the share of
    the copy that costs no time: 1 - (both - compute) / copy.
    """
    if order not in ("kernels", "copy"):
        raise ValueError(f"order {order} is none of kernels, copy")
    a, b, c = (torch.randn(n, n, device=device) for _ in range(3))
    source = host_memory(bytes, torch.uint8, device, pinned).fill_(1)
    target = torch.zeros(bytes, dtype=torch.uint8, device=device)
    side = new_stream(device)
    side.wait_stream(current_stream(device))
    issued = 0.0

    def compute():
        for _ in range(count):
            torch.mm(a, b, out=c)

    def copy():
        nonlocal issued
        with on(side):
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            issued = (time.perf_counter() - began) * 1e6

    def both():
        for work in (compute, copy) if order == "kernels" else (copy, compute):
            work()

    took = [milliseconds(device, work) for work in (compute, copy, both)]
    return {
        "compute": took[0],
        "copy": took[1],
        "both": took[2],
        "issue_microseconds": issued,
        "hidden": 1 - (took[2] - took[0]) / took[1],
    }


@torch.inference_mode()
def rounds(*, device, n, repeats, bytes, count):
    """count rounds: a copy of bytes from pinned memory, then repeats float32 products of n x n that read the copied memory.

    Returns milliseconds a round: ahead, with two slots that a side stream fills; and of each part alone, compute and copy.
    """
    if n * n * 4 > bytes:
        raise ValueError(f"{bytes} bytes are too few for a matrix of {n} x {n}")
    elements = bytes // 4
    sources = [host_memory(elements, torch.float32, device).normal_() for _ in range(2)]
    slots = Slots(2, elements, device)
    b, c = (torch.randn(n, n, device=device) for _ in range(2))

    def compute(memory):
        a = memory[: n * n].view(n, n)
        for _ in range(repeats):
            torch.mm(a, b, out=c)

    def ahead():
        slots.fill(0, sources[0])
        for i in range(count):
            if i + 1 < count:
                slots.fill((i + 1) % 2, sources[(i + 1) % 2])
            compute(slots.take(i % 2))
            slots.release(i % 2)

    works = {
        "ahead": ahead,
        "compute": lambda: [compute(slots.memory[0]) for _ in range(count)],
        "copy": lambda: [slots.memory[0].copy_(sources[0], non_blocking=True) for _ in range(count)],
    }
    return {name: milliseconds(device, work) / count for name, work in works.items()}


def milliseconds(device, work):
    """Milliseconds of a run of work after two others."""
    seconds(device, work, 2)
    return seconds(device, work, 1) * 1e3


class Slots:
    """Slots of device memory that a side stream fills while other slots are read.

    For each slot: fill, then take, then release once its readers have been enqueued; then fill again. No call waits on the host.
    """

    def __init__(self, count, elements, device):
        self.device = device
        self.memory = torch.empty(count, elements, device=device)
        self.side = new_stream(device)
        self.side.wait_stream(current_stream(device))  # enqueued work of the current stream may still read the memory that torch.empty reuses
        self.ready = [new_event(device) for _ in range(count)]
        self.released = [new_event(device) for _ in range(count)]

    def fill(self, slot, source):
        """Enqueues a copy on the side stream, after the slot's release. A slot that was never released is free."""
        with on(self.side):
            self.side.wait_event(self.released[slot])
            self.memory[slot].copy_(source, non_blocking=True)
            self.ready[slot].record(self.side)

    def take(self, slot):
        """The slot's memory. Later work of the current stream sees the last fill."""
        current_stream(self.device).wait_event(self.ready[slot])
        return self.memory[slot]

    def release(self, slot):
        self.released[slot].record(current_stream(self.device))


class Done:
    """A stream or an event of the CPU: enqueued work is done already."""

    def wait_event(self, event):
        pass

    def wait_stream(self, stream):
        pass

    def record(self, stream):
        pass


def is_cuda(device):
    return device.startswith("cuda")


def new_stream(device):
    return torch.cuda.Stream(device) if is_cuda(device) else Done()


def current_stream(device):
    return torch.cuda.current_stream(device) if is_cuda(device) else Done()


def new_event(device):
    return torch.cuda.Event() if is_cuda(device) else Done()


def on(stream):
    """Makes the stream the current one, for a with statement."""
    return contextlib.nullcontext() if isinstance(stream, Done) else torch.cuda.stream(stream)


def host_memory(shape, dtype, device, pinned=True):
    """Host memory without content, pinned for that device or pageable."""
    return torch.empty(shape, dtype=dtype, pin_memory=pinned and is_cuda(device))


if __name__ == "__main__":
    serve(overlap, rounds)
