"""Large products, then small operators, with a wait between them or without: how long the device has nothing to do, from CUPTI's
records as torch.profiler keeps them."""

import torch
from torch.profiler import ProfilerActivity, profile

from peer import serve, synchronize

state = {}


def prepare(products, side, operators, elements, device):
    state.update(products=products, operators=operators, device=device)
    state["matrix"] = torch.zeros(side, side, dtype=torch.bfloat16, device=device)
    state["numbers"] = torch.zeros(elements, device=device)


@torch.no_grad()
def block(wait):
    """Microseconds that the device was idle from the last product's end to the last operator's end, in gaps of more than 2."""
    synchronize(state["device"])
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(state["products"]):
            state["matrix"] @ state["matrix"]
        if wait:
            synchronize(state["device"])
        for _ in range(state["operators"]):
            state["numbers"].add_(1.0)
        synchronize(state["device"])
    kernels = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), "elementwise" in e.name())
        for e in recorded.profiler.kineto_results.events()
        if e.device_type() == torch.autograd.DeviceType.CUDA and e.duration_ns() > 0
    )
    operators = sum(small for _, _, small in kernels)
    if operators != state["operators"]:
        raise RuntimeError(f"{operators} operators are in the profile, want {state['operators']}")
    gaps = [after[0] - before[1] for before, after in zip(kernels, kernels[1:]) if after[2]]
    return {"idle": sum(gap for gap in gaps if gap > 2000) / 1e3}


if __name__ == "__main__":
    serve(prepare, block)
