"""Times `streamtorch pack`, WebDataset's writer, and tar with pigz over one folder SPLIT/CLASS/FILE of JPEG files.

    go build -o OUR ./cmd/streamtorch
    python bench/pack.py --ours OUR --out SCRATCH FOLDER

It needs the package webdataset 1.0.2 and pigz. The commands take turns, and each output is synced before its clock stops.
Each line has the median wall seconds and the median processor seconds of all processes, their ranges, and the bytes of the output.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time


def write(folder, target, half=None):
    """Write one sample for each file with WebDataset's TarWriter. A half of 0 or 1 writes that half of the files."""
    import webdataset

    files = sorted(folder.rglob("*.JPEG"))
    if half is not None:
        middle = len(files) // 2
        files = files[middle:] if half else files[:middle]
    # A name that ends with gz makes TarWriter compress. A pipe into pigz must get the plain tar.
    with webdataset.TarWriter(target, compress=False if target.startswith("pipe:") else None) as sink:
        for file in files:
            sink.write({"__key__": str(file.relative_to(folder).with_suffix("")), "jpg": file.read_bytes()})


def sides(args):
    """Return the commands and their names; each writes into the folder that it is called in."""
    folder, ours = args.folder.resolve(), args.ours.resolve()
    peer = f"'{sys.executable}' '{pathlib.Path(__file__).resolve()}' '{folder}' --write"
    return {
        "pack, .tar": f"'{ours}' pack a.tar '{folder}'",
        "WebDataset, .tar": f"{peer} a.tar",
        "pack, .tgz with an index": f"'{ours}' pack a.tgz '{folder}'",
        "pack -index=false, .tgz": f"'{ours}' pack -index=false a.tgz '{folder}'",
        "WebDataset, .tar.gz": f"{peer} a.tar.gz",
        "WebDataset, two processes, .tar.gz": f"{peer} a.tar.gz --half 0 & {peer} b.tar.gz --half 1 & wait",
        "WebDataset, pipe: to pigz -6 -p 2": f"{peer} 'pipe:pigz -6 -p 2 > a.tar.gz'",
        "tar and pigz -6 -p 2": f"tar -C '{folder}' -cf - . | pigz -6 -p 2 > a.tar.gz",
    }


def once(command, out):
    """Return the wall seconds, the processor seconds and the bytes of one run."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.sync()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, shell=True, check=True, cwd=out, stdout=subprocess.DEVNULL)
    for file in out.iterdir():
        with file.open("rb") as f:
            os.fsync(f.fileno())
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, processor, sum(file.stat().st_size for file in out.iterdir())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ours", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only the commands whose names contain this; parts are separated by +")
    parser.add_argument("--write")
    parser.add_argument("--half", type=int)
    args = parser.parse_args()
    if args.write:
        return write(args.folder, args.write, args.half)
    for file in args.folder.rglob("*.JPEG"):  # into the page cache
        file.read_bytes()
    commands, runs = sides(args), {}
    for number in range(args.rounds):
        for name, command in commands.items():
            if not any(part in name for part in args.only.split("+")):
                continue
            runs.setdefault(name, []).append(once(command, args.out / "pack"))
            print(number, name, *runs[name][-1], "load", *os.getloadavg()[:1], flush=True)
    shutil.rmtree(args.out / "pack")
    for name, values in runs.items():
        wall, processor, size = zip(*values)
        print(f"| {name} | {statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f})", end=" | ")
        print(f"{statistics.median(processor):.2f} ({min(processor):.2f} to {max(processor):.2f}) | {size[-1]:,} |")


main()
