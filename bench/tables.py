"""PyTorch's usual way to batches of numbers: DataLoader over tensors in memory, and pyarrow's readers with index_select over a permutation.

The functions for files need pyarrow: python -m pip install pyarrow, with the Python that the benchmarks compare with.
"""

import multiprocessing
import os
import time

import torch

from peer import serve

FEATURES = [f"f{i}" for i in range(8)]
state = {}


def table(rows, width, batch):
    """Prepares a DataLoader over float32 [rows, width] and int64 labels in memory."""
    idle()
    torch.manual_seed(1)
    tensors = torch.utils.data.TensorDataset(torch.rand(rows, width), torch.randint(0, 10, (rows,)))
    state.update(samples=tensors, batch=batch, epoch=from_loader)


def workers(count, pinned=False):
    """Makes the DataLoader with so many worker processes, which stay from one epoch to the next."""
    state["loader"] = None  # ends the processes of the previous loader
    state["loader"] = torch.utils.data.DataLoader(
        state["samples"], state["batch"], shuffle=True, num_workers=count, persistent_workers=count > 0, pin_memory=pinned
    )


def epoch(steps=0):
    """Samples per second of an epoch, or of so many batches of one."""
    began, n = time.perf_counter(), 0
    for i, (_, labels) in enumerate(state["loader"]):
        n += len(labels)
        if i + 1 == steps:
            break
    return {"images_per_second": n / (time.perf_counter() - began)}


def from_loader():
    return sum(len(labels) for _, labels in state["loader"])


def to_parquet(csv, parquet):
    """Writes the rows of the CSV file as a Parquet file, as pyarrow does without options."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(read_csv(csv), parquet)


def file(path, batch):
    """Prepares epochs of a file with columns f0 to f7 and label."""
    import pyarrow  # before the memory is counted

    idle()
    state.update(path=path, batch=batch, epoch=from_file)
    return {"pyarrow": pyarrow.__version__}


def read_csv(path):
    import pyarrow
    from pyarrow import csv

    types = {name: pyarrow.float32() for name in FEATURES}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types={**types, "label": pyarrow.int64()}))


def from_file():
    """Reads the whole file, and takes batches of a permutation of its rows."""
    import pyarrow.parquet

    path = state["path"]
    rows = read_csv(path) if path.endswith(".csv") else pyarrow.parquet.read_table(path)
    features, labels = torch.empty(len(rows), len(FEATURES)), torch.empty(len(rows), dtype=torch.int64)
    for i, name in enumerate(FEATURES):
        features.numpy()[:, i] = rows[name].to_numpy()
    labels.numpy()[:] = rows["label"].to_numpy()
    n = 0
    for places in torch.randperm(len(rows)).split(state["batch"]):
        features.index_select(0, places)
        n += len(labels.index_select(0, places))
    return n


def samples(count, rows):
    """Samples per second of so many epochs, processor time of a sample in microseconds, and the most MiB above the idle process."""
    began, cpu = time.perf_counter(), cpu_time()
    n = sum(state["epoch"]() for _ in range(count))
    seconds, cpu = time.perf_counter() - began, cpu_time() - cpu
    if n != count * rows:
        raise RuntimeError(f"{count} epochs had {n} samples, want {count * rows}")
    return {"samples_per_second": n / seconds, "cpu": 1e6 * cpu / n, "peak": peak() - state["idle"]}


def idle():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins again at the present memory
    state["idle"] = status("self", "VmRSS:")


def peak():
    """MiB: the most that this process has had, and what its workers have now, without what they share."""
    return status("self", "VmHWM:") + sum(status(p.pid, "RssAnon:") for p in multiprocessing.active_children())


def status(pid, name):
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def cpu_time():
    """Seconds of processor time that this process and its workers have used."""
    ticks = 0
    for pid in [os.getpid(), *(p.pid for p in multiprocessing.active_children())]:
        with open(f"/proc/{pid}/stat") as line:
            fields = line.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    serve(table, workers, epoch, to_parquet, file, samples)
