"""Modules that arrive just in time, in PyTorch: copies beside compute, experts, whole layers, and the optimizer's moments.

Each request runs a warm-up of its own, then one block between two synchronisations. `python modules.py -check` answers all of them with
tiny sizes, on the CPU and on the GPU if there is one, and compares the results of the ways.
"""

import json
import math
import sys
import time

import torch
import torch.nn.functional as F

from peer import serve, synchronize
from slots import Slots, clear, current_stream, fill_windows, host_memory, is_cuda, milliseconds, new_stream, noise, on, peak, reset_peak
from switch import WAYS, switch

WARM_UP = 2  # runs


@torch.inference_mode()
def overlap(*, pinned, order, device, n=4096, count=2, bytes=64 << 20):
    """So many float32 products of n x n on the current stream and a copy to the device on a side stream; order is kernels or copy, which
    is enqueued first.

    Returns milliseconds of the products alone (compute), of the copy alone (copy) and of both; issue_microseconds, which the host takes
    to enqueue the copy where both run; and hidden, the share of the copy that costs no time: 1 - (both - compute) / copy.
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

    took = [warm(device, work) for work in (compute, copy, both)]
    return {
        "compute": took[0],
        "copy": took[1],
        "both": took[2],
        "issue_microseconds": issued,
        "hidden": 1 - (took[2] - took[0]) / took[1],
    }


@torch.inference_mode()
def rounds(*, device, n=2048, repeats=4, bytes=64 << 20, count=40):
    """So many rounds, each a copy of bytes from pinned memory and then repeats float32 products of n x n, the first matrix in what was copied.

    Returns milliseconds per round: on_demand, on one stream and into one slot; ahead, two slots filled by a side stream; and of each
    part alone, compute and copy.
    """
    if n * n * 4 > bytes:
        raise ValueError(f"{bytes} bytes are too few for a matrix of {n} x {n}")
    elements = bytes // 4
    sources = [host_memory(elements, torch.float32, device).normal_() for _ in range(2)]
    slots = Slots(2, elements, torch.float32, device)
    b, c = (torch.randn(n, n, device=device) for _ in range(2))

    def compute(memory):
        a = memory[: n * n].view(n, n)
        for _ in range(repeats):
            torch.mm(a, b, out=c)

    def on_demand():
        for i in range(count):
            slots.memory[0].copy_(sources[i % 2], non_blocking=True)
            compute(slots.memory[0])

    def ahead():
        slots.fill(0, sources[0])
        for i in range(count):
            if i + 1 < count:
                slots.fill((i + 1) % 2, sources[(i + 1) % 2])
            compute(slots.take(i % 2))
            slots.release(i % 2)

    works = {
        "on_demand": on_demand,
        "ahead": ahead,
        "compute": lambda: [compute(slots.memory[0]) for _ in range(count)],
        "copy": lambda: [slots.memory[0].copy_(sources[0], non_blocking=True) for _ in range(count)],
    }
    return {name: warm(device, work) / count for name, work in works.items()}


def checksum(x):
    """A sum of x with weights from 0 to 1, so that it depends on the order, and on x where that was normalised."""
    return (x.flatten().double() @ torch.linspace(0, 1, x.numel(), dtype=torch.float64, device=x.device)).item()


def warm(device, work):
    """Milliseconds of a run of work after others of it."""
    milliseconds(device, work, WARM_UP)
    return milliseconds(device, work)


class Transformer:
    """A block of self-attention and two linear layers, before each of which x is normalised; x is [tokens, width]."""

    def __init__(self, width, hidden, heads, depth):
        self.heads = heads
        self.shapes = [(3 * width, width), (width, width), (hidden, width), (width, hidden)]

    def __call__(self, x, weights):
        qkv, out, up, down = weights
        h = F.linear(F.layer_norm(x, x.shape[1:]), qkv)
        q, k, v = h.view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        h = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + F.linear(h.transpose(0, 1).reshape(x.shape), out)
        return x + F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[1:]), up)), down)


class Linears:
    """So many linear layers and ReLUs, one after another."""

    def __init__(self, width, hidden, heads, depth):
        self.shapes = [(width, width)] * depth

    def __call__(self, x, weights):
        for w in weights:
            x = F.relu(F.linear(x, w))
        return F.layer_norm(x, x.shape[1:])


host_layers = {}  # pinned weights of the last request's layers, by what they depend on


@torch.inference_mode()
def layers(*, mode, device, n=24, kind="transformer", width=2048, hidden=8192, heads=16, depth=4, tokens=4096, dtype="bfloat16", passes=2):
    """Passes of x [tokens, width] through n equal layers, whose weights are in pinned memory, a piece for each layer.

    kind is transformer (width, hidden, heads) or linear (width, depth). mode is resident, with all layers on the device; on_demand, which
    copies a layer on the stream that computes; or ahead, which has the next layer copied by a side stream into the other of two slots,
    over the end of a pass too.

    Returns milliseconds per pass, bytes copied in a pass, peak_bytes on the device, above those before, and checksum, of the result.
    """
    layer = {"transformer": Transformer, "linear": Linears}[kind](width, hidden, heads, depth)
    sizes = [math.prod(shape) for shape in layer.shapes]
    weights = pinned_layers(n, sum(sizes), width**-0.5, getattr(torch, dtype), device)
    base = clear(device)
    reset_peak(device)
    run = {"resident": resident_pass, "on_demand": on_demand_pass, "ahead": ahead_pass}[mode](weights, device)
    generator = torch.Generator().manual_seed(1)
    source = torch.randn(tokens, width, generator=generator).to(device, weights.dtype)

    def apply(x, flat):
        return layer(x, [w.view(shape) for w, shape in zip(flat.split(sizes), layer.shapes)])

    run(apply, source)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(passes):
        x = run(apply, source)
    synchronize(device)
    return {
        "milliseconds": (time.perf_counter() - began) * 1e3 / passes,
        "bytes": 0 if mode == "resident" else weights.nbytes,
        "peak_bytes": peak(device) - base,
        "checksum": checksum(x),
    }


def pinned_layers(n, elements, std, dtype, device):
    key = (n, elements, std, dtype, device)
    if key not in host_layers:
        host_layers.clear()
        clear(device)
        host_layers[key] = host_memory((n, elements), dtype, device)
        fill_windows(host_layers[key], noise(elements, n, std, dtype, torch.Generator().manual_seed(2)))
    return host_layers[key]


def resident_pass(weights, device):
    memory = weights.to(device)

    def run(apply, x):
        for flat in memory:
            x = apply(x, flat)
        return x

    return run


def on_demand_pass(weights, device):
    memory = torch.empty_like(weights[0], device=device)

    def run(apply, x):
        for flat in weights:
            memory.copy_(flat, non_blocking=True)
            x = apply(x, memory)
        return x

    return run


def ahead_pass(weights, device):
    n = len(weights)
    slots = Slots(2, weights.shape[1], weights.dtype, device)
    filled = 0  # layers, counted over all passes

    def fill():
        nonlocal filled
        slots.fill(filled % 2, weights[filled % n])
        filled += 1

    fill()

    def run(apply, x):
        for _ in weights:
            fill()
            slot = filled % 2  # of the layer before the one that was filled last
            x = apply(x, slots.take(slot))
            slots.release(slot)
        return x

    return run


class ResidentAdam:
    """Moments on the device."""

    bytes = 0

    def __init__(self, groups, device):
        self.adam = torch.optim.Adam(groups_of(groups), fused=True)
        self.step = self.adam.step


class MovedAdam:
    """Moments in pinned memory. Each group's are copied to the device, used and copied back, one group after another on one stream."""

    def __init__(self, groups, device):
        self.device = device
        self.parts = [(torch.optim.Adam(group, fused=True), [self.moments(p) for p in group]) for group in groups]
        self.bytes = 4 * sum(p.nbytes for group in groups for p in group)
        for adam, moments in self.parts:
            for p, pair in zip(adam.param_groups[0]["params"], moments):
                adam.state[p] = {"step": torch.zeros((), device=device), "exp_avg": pair[0], "exp_avg_sq": pair[1]}

    def moments(self, p):
        return [host_memory(p.shape, p.dtype, self.device).zero_() for _ in range(2)]

    def step(self):
        for adam, moments in self.parts:
            pairs = list(zip(adam.state.values(), moments))
            for state, (mean, square) in pairs:
                state["exp_avg"] = mean.to(self.device, non_blocking=True)
                state["exp_avg_sq"] = square.to(self.device, non_blocking=True)
            adam.step()
            for state, (mean, square) in pairs:
                mean.copy_(state["exp_avg"], non_blocking=True)
                square.copy_(state["exp_avg_sq"], non_blocking=True)
                state["exp_avg"], state["exp_avg_sq"] = mean, square


class HostAdam:
    """Weights and moments on the host, as ZeRO-Offload has them: gradients to pinned memory, PyTorch's Adam on the CPU, weights back."""

    def __init__(self, groups, device):
        self.device = device
        self.params = [p for group in groups for p in group]
        self.host = [torch.nn.Parameter(host_memory(p.shape, p.dtype, device)) for p in self.params]
        with torch.no_grad():
            for host, p in zip(self.host, self.params):
                host.copy_(p)
                host.grad = host_memory(p.shape, p.dtype, device)
        self.adam = torch.optim.Adam(self.host, fused=True)
        self.bytes = 2 * sum(p.nbytes for p in self.params)

    @torch.no_grad()
    def step(self):
        for host, p in zip(self.host, self.params):
            host.grad.copy_(p.grad, non_blocking=True)
        synchronize(self.device)
        self.adam.step()
        for host, p in zip(self.host, self.params):
            p.copy_(host, non_blocking=True)


def groups_of(groups):
    return [{"params": group} for group in groups]


def optimizer(*, mode, device, groups=8, tensors=4, elements=4 << 20, steps=3, warm_up=1):
    """Steps of Adam, fused, on float32 parameters: groups of so many tensors of so many elements; gradients are resident and stay the same.

    mode is resident, moved (moments in pinned memory, group after group) or host (Adam on the CPU).

    Returns milliseconds per step, bytes copied in a step, both ways together, peak_bytes on the device, above those before the
    parameters were made, and checksum, of the parameters.
    """
    base = clear(device)
    reset_peak(device)
    generator = torch.Generator(device).manual_seed(1)
    params = [[parameter(elements, generator, device) for _ in range(tensors)] for _ in range(groups)]
    adam = {"resident": ResidentAdam, "moved": MovedAdam, "host": HostAdam}[mode](params, device)
    for _ in range(warm_up):
        adam.step()
    each = milliseconds(device, adam.step, steps)
    return {
        "milliseconds": each,
        "bytes": adam.bytes,
        "peak_bytes": peak(device) - base,
        "checksum": sum(checksum(p.detach()) for group in params for p in group),
    }


def parameter(elements, generator, device):
    p = torch.nn.Parameter(torch.randn(elements, generator=generator, device=device))
    p.grad = torch.randn(elements, generator=generator, device=device)
    return p


def check(device):
    """Answers every request with tiny sizes, and raises AssertionError where ways that calculate the same disagree."""

    def ask(function, **arguments):
        reply = function(device=device, **arguments)
        print(json.dumps({"do": function.__name__, "device": device, **arguments, "reply": reply}), file=sys.stderr)
        assert all(math.isfinite(v) for v in reply.values() if isinstance(v, (int, float))), reply
        return reply

    for pinned in (True, False):
        for order in ("kernels", "copy"):
            ask(overlap, pinned=pinned, order=order, n=64, bytes=1 << 16)
    ask(rounds, n=64, repeats=2, bytes=1 << 16, count=5)
    large = is_cuda(device)  # copies long enough for what does not wait for them to be seen
    for dtype in ("float32", "bfloat16"):
        check_switch(ask, dtype, 8192 if large else 64)
    tiny = {"n": 5, "width": 1024 if large else 32, "hidden": 64, "heads": 2, "depth": 2, "tokens": 16, "dtype": "float32"}
    for kind in ("transformer", "linear"):
        sums = [ask(layers, mode=mode, kind=kind, **tiny)["checksum"] for mode in ("resident", "on_demand", "ahead")]
        assert sums[0] == sums[1] == sums[2], sums
    sums = [
        ask(optimizer, mode=mode, groups=3, tensors=2, elements=1000)["checksum"] for mode in ("resident", "moved", "host")
    ]
    assert all(math.isclose(s, sums[0], rel_tol=1e-5) for s in sums), sums


def check_switch(ask, dtype, d_ff):
    tiny = {"layers": 6, "d_model": 32, "d_kv": 8, "heads": 4, "d_ff": d_ff, "experts": 16, "vocab": 4000, "source": 7, "length": 40}
    tiny.update(dtype=dtype, tokens=32, warm_up=4)
    sequences = []
    for pregated in (False, True):
        replies = {mode: ask(switch, mode=mode, pregated=pregated, slots=4, **tiny) for mode in WAYS}
        ids = replies["resident"]["ids"]
        assert len(ids) == 36 and len(set(ids)) > 5, ids
        for mode, reply in replies.items():
            assert reply["ids"] == ids, f"{mode} has other ids than resident: {reply['ids']}, {ids}"
        expert = 2 * 32 * d_ff * (4 if dtype == "float32" else 2)
        assert replies["on_demand"]["bytes"] == replies["side_stream"]["bytes"] == 32 * 3 * expert, replies
        assert 0 < replies["lru"]["hit_rate"] < 1, replies
        again = ask(switch, mode="lru", pregated=pregated, slots=4, **tiny)
        assert (again["ids"], again["hit_rate"]) == (ids, replies["lru"]["hit_rate"]), again
        sequences.append(ids)
    assert sequences[0] != sequences[1], "pre-gated routing makes no difference"
    assert ask(switch, mode="compute", **tiny)["ids"] == sequences[1]
    ask(switch, mode="copy", **tiny)


if __name__ == "__main__":
    if "-check" in sys.argv[1:]:
        for each in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
            check(each)
    else:
        serve(overlap, rounds, switch, layers, optimizer)
