"""The Python side of a comparison: a process that does what it is asked for on standard input, one JSON object a line.

A request is {"do": name, ...arguments}; the reply is what the function of that name returns, or {"error": traceback}.
"""

import json
import multiprocessing
import os
import sys
import tarfile
import tempfile
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
    torch.use_deterministic_algorithms(deterministic)
    import PIL
    import torchvision

    return {"versions": f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}"}


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def unpacked(archive, part):
    """Unpacks an archive, as users of ImageFolder do once. Returns its folder, which is there as long as the object, and the path of part."""
    folder = tempfile.TemporaryDirectory(prefix="bench-images-")
    with tarfile.open(archive) as tar:
        tar.extractall(folder.name, filter="data")
    return folder, os.path.join(folder.name, part)


def processes():
    """Ids of this process and its workers."""
    return [os.getpid(), *(p.pid for p in multiprocessing.active_children())]


def cpu_time():
    """Seconds of processor time that this process and its workers have used."""
    ticks = 0
    for pid in processes():
        with open(f"/proc/{pid}/stat") as line:
            fields = line.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss():
    """Memory of this process and its workers in MiB, what they share counted once."""
    total = 0
    for pid in processes():
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
