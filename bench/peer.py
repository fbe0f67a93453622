"""The Python side of a comparison: a process that does what it is asked for on standard input, one JSON object a line.

A request is {"do": name, ...arguments}; the reply is what the function of that name returns, or {"error": traceback}.
"""

import json
import os
import sys
import time
import traceback

import torch


def serve(*functions):
    """Answers requests until standard input ends. What else is printed goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    by_name = {f.__name__: f for f in (start, *functions)}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = by_name[request.pop("do")](**request) or {}
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)


def start(threads, benchmark, tf32, deterministic):
    """Sets the process-wide switches as the other side has them."""
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic)
    import PIL
    import torchvision

    return {"versions": f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}"}


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(device, work, times):
    """Seconds that a run of work takes, of so many between two synchronisations."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times
