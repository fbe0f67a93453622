"""Memory of the host that is copied to the device ahead of use, and the slots it is copied into.

On the CPU a stream and an event do nothing but tell the time, pinned memory is memory, and a copy is done when it returns.
"""

import contextlib
import gc
import time

import torch

from peer import synchronize

STRIDE = 257  # elements from the beginning of one window of the noise to the next's


class HostStream:
    """A stream of the CPU: what is enqueued is done already."""

    def wait_event(self, event):
        pass

    def wait_stream(self, stream):
        pass


class HostEvent:
    """An event of the CPU has the time of its record."""

    def record(self, stream=None):
        self.at = time.perf_counter()

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


class Slots:
    """Slots of device memory that a side stream fills while compute reads others of them.

    For each slot: fill, then take, then release once what reads it has been enqueued; then fill again. No call waits on the host, if the
    source is pinned.
    """

    def __init__(self, count, elements, dtype, device):
        self.device = device
        self.memory = torch.empty(count, elements, dtype=dtype, device=device)
        self.side = new_stream(device)
        self.side.wait_stream(current_stream(device))  # the allocator may have given memory that work enqueued there still reads
        self.ready = [new_event(device) for _ in range(count)]
        self.released = [new_event(device) for _ in range(count)]

    def fill(self, slot, source):
        """Enqueues a copy on the side stream, after the slot's release. A slot that was never released is free."""
        with on(self.side):
            self.side.wait_event(self.released[slot])
            self.memory[slot].copy_(source, non_blocking=True)
            self.ready[slot].record(self.side)

    def take(self, slot):
        """The slot's memory; what the current stream runs from here on sees the last fill."""
        current_stream(self.device).wait_event(self.ready[slot])
        return self.memory[slot]

    def release(self, slot):
        self.released[slot].record(current_stream(self.device))


def is_cuda(device):
    return device.startswith("cuda")


def new_stream(device):
    return torch.cuda.Stream(device) if is_cuda(device) else HostStream()


def current_stream(device):
    return torch.cuda.current_stream(device) if is_cuda(device) else HostStream()


def new_event(device, timing=False):
    return torch.cuda.Event(enable_timing=timing) if is_cuda(device) else HostEvent()


def on(stream):
    """Makes the stream the current one, for a with statement."""
    return contextlib.nullcontext() if isinstance(stream, HostStream) else torch.cuda.stream(stream)


def host_memory(shape, dtype, device, pinned=True):
    """Host memory that was not written yet, pinned for that device or pageable. PyTorch rounds pinned memory up to a power of two of bytes."""
    return torch.empty(shape, dtype=dtype, pin_memory=pinned and is_cuda(device))


def noise(elements, count, std, dtype, generator):
    """Random numbers enough for windows of so many elements, count of them."""
    return torch.randn(elements + STRIDE * (count - 1), generator=generator).mul_(std).to(dtype)


def fill_windows(memory, source):
    """Fills row i of memory, which is [count, elements], with a window of the noise that begins i * STRIDE elements in.

    Rows differ in all elements, and cost a copy and not a random number for each of them; a copy on the CPU uses all threads.
    """
    elements = memory.shape[1]
    for i, row in enumerate(memory):
        row.copy_(source[i * STRIDE : i * STRIDE + elements])


def clear(device):
    """Gives cached memory back, of the device and pinned, and returns the bytes on the device that are allocated still; 0 on the CPU."""
    synchronize(device)
    gc.collect()
    torch._C._host_emptyCache()
    if not is_cuda(device):
        return 0
    torch._C._cuda_clearCublasWorkspaces()  # they are allocated memory, and empty_cache leaves them
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def reset_peak(device):
    """Counts the peak from here on."""
    if is_cuda(device):
        torch.cuda.reset_peak_memory_stats()


def peak(device):
    """The most bytes allocated on the device; 0 on the CPU."""
    return torch.cuda.max_memory_allocated() if is_cuda(device) else 0


def milliseconds(device, work, times=1):
    """Milliseconds that a run of work takes, of so many between two synchronisations."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) * 1e3 / times
