"""The recipe of examples/record-cifar in PyTorch, timed from the start of the process to the test accuracy.

    python bench/record_cifar.py --data FOLDER                         # cifar10-train.tgz, cifar10-test.tgz in FOLDER
    python bench/record_cifar.py --data FOLDER --compile max-autotune  # with torch.compile

The recipe is airbench94 of Keller Jordan, arXiv:2404.00498, with its float16 weights on a GPU. With float32 weights equal
seeds draw equal weights, orders, shifts and flips here and in examples/record-cifar: the losses can be compared step by step.

The clock is that of examples/record-cifar. Decoding runs in processes while this one imports PyTorch. Compilation counts.
The last line is one JSON object.
"""

import argparse
import io
import json
import math
import mmap
import os
import sys
import tarfile
import time

SIDE, PIXELS, ROOM = 32, 32 * 32 * 3, 60_000  # ROOM is the largest number of images in a part
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
MOMENTUM, SMOOTHING, REACH = 0.85, 0.2, 2


def flags(args=None):
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True, help="a folder with cifar10-train.tgz and cifar10-test.tgz, or one archive of both parts")
    p.add_argument("--device", default="cuda")
    p.add_argument("--dtype", default="", help="of weights: float16 or float32; empty: float16 on a GPU, else float32")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--epochs", type=float, default=9.9)
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--lr", type=float, default=11.5)
    p.add_argument("--widths", default="64,256,256")
    p.add_argument("--tta", type=int, default=2)
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that decode")
    p.add_argument("--benchmark", action="store_true", help="let cuDNN try its algorithms, as the recipe does in its warm-up")
    p.add_argument("--compile", default="", help="a mode of torch.compile: default, reduce-overhead, max-autotune; empty: none")
    p.add_argument("--losses", type=int, default=0, help="write the losses of so many steps to standard error")
    return p.parse_args(args)


def age():
    """Seconds since the start of this process."""
    with open("/proc/self/stat") as f:
        started = int(f.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def without_gradients(method):
    """torch.no_grad as a decorator of methods that are defined before PyTorch is imported."""

    def call(*arguments):
        with torch.no_grad():
            return method(*arguments)

    return call


class Reader:
    """Processes that decode a part of the data into memory that they share with this one."""

    def __init__(self, data, part, workers):
        self.part, self.file = part, os.path.join(data, f"cifar10-{part}.tgz") if os.path.isdir(data) else data
        if not os.path.exists(self.file):
            sys.exit(f"record_cifar.py: no file {self.file}")
        self.pixels, self.labels, self.count = mmap.mmap(-1, ROOM * PIXELS), mmap.mmap(-1, ROOM), mmap.mmap(-1, 8)
        self.children = []
        for rank in range(workers):
            if child := os.fork():
                self.children.append(child)
                continue
            status = 1
            try:
                self.decode(rank, workers)
                status = 0
            finally:
                os._exit(status)

    def decode(self, rank, workers):
        from PIL import Image

        with tarfile.open(self.file) as tar:
            images = (m for m in tar if m.isfile() and m.name.startswith(self.part + "/"))
            members = [(m.name, tar.extractfile(m).read() if i % workers == rank else None) for i, m in enumerate(images)]
        classes = sorted({name.split("/")[1] for name, _ in members})
        for i, (name, data) in enumerate(members):
            if data is not None:
                self.pixels[i * PIXELS : (i + 1) * PIXELS] = Image.open(io.BytesIO(data)).convert("RGB").tobytes()
                self.labels[i] = classes.index(name.split("/")[1])
        if rank == 0:
            self.count[:] = len(members).to_bytes(8, "little")

    def wait(self, limit):
        """Returns uint8 pixels [N, 32, 32, 3] and int64 labels [N]."""
        for child in self.children:
            if os.waitpid(child, 0)[1] != 0:
                sys.exit(f"record_cifar.py: {self.file} cannot be decoded")
        n = int.from_bytes(self.count[:], "little")
        n = min(n, limit) if limit else n
        pixels = torch.frombuffer(self.pixels, dtype=torch.uint8, count=n * PIXELS).view(n, SIDE, SIDE, 3)
        return pixels, torch.frombuffer(self.labels, dtype=torch.uint8, count=n).long()


def main():
    o = flags()
    phases = []

    def phase(name, since):
        if o.device != "cpu" and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = age()
        phases.append({"name": name, "from": round(since, 3), "to": round(now, 3)})
        return now

    began = age()
    quarter = max(1, o.workers // 4)  # the test images are a sixth of all
    train, test = Reader(o.data, "train", max(1, o.workers - quarter)), Reader(o.data, "test", quarter)
    global torch
    import torch

    now = phase("importing PyTorch", began)
    torch.backends.cudnn.benchmark = o.benchmark
    torch.manual_seed(o.seed)
    device = torch.device(o.device)
    torch.zeros(1, device=device)
    now = phase("opening the device", now)
    pixels, labels = (t.to(device) for t in train.wait(o.limit))
    now = phase("reading and decoding, training", now)
    run = Run(o, device, pixels, labels)
    now = phase("network, whitening", now)
    first = min(3, run.steps)
    for step in range(first):
        run.once(step)
    now = phase(f"the first {first} steps", now)
    for step in range(first, run.steps):
        run.once(step)
    now = phase("the other steps", now)
    pixels, labels = (t.to(device) for t in test.wait(o.limit))
    now = phase("reading and decoding, test", now)
    accuracy = run.evaluate(pixels, labels, o.tta)
    seconds = phase("evaluation", now)
    print(f"seed {o.seed}: {100 * accuracy:.2f} % of {len(labels)} images, {seconds:.3f} s after the start of the process")
    print(json.dumps({"seed": o.seed, "accuracy": accuracy, "images": len(labels), "seconds": round(seconds, 3), "steps": run.steps,
                      "loss": run.loss.item() / o.batch, "compile": o.compile, "torch": torch.__version__, "phases": phases}), flush=True)
    os._exit(0)  # the end of the interpreter is not part of the time, here as there


class Run:
    def __init__(self, o, device, pixels, labels):
        self.o, self.pixels, self.labels, self.device = o, pixels, labels, device
        half = o.dtype == "float16" or o.dtype == "" and device.type == "cuda"
        self.dtype = torch.float16 if half else torch.float32
        self.mean, self.std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
        self.batches = len(labels) // o.batch
        self.steps = math.ceil(o.epochs * self.batches)
        self.rise = int(0.23 * self.steps)
        with device:  # weights are drawn where the other side draws them
            self.net = self.network([int(w) for w in o.widths.split(",")])
        self.norms = [m for m in self.net.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        self.rest = list(self.net)[1:]
        self.forward = torch.compile(self.apply, mode=o.compile) if o.compile else self.apply
        biases = [m.bias for m in self.norms]
        others = [p for p in self.net.parameters() if p.requires_grad and not any(p is b for b in biases)]
        kilo = 1024 * (1 + 1 / (1 - MOMENTUM))
        lr, decay = o.lr / kilo, 0.0153 * o.batch / kilo
        self.optimizer = torch.optim.SGD(
            [{"params": biases, "lr": 64 * lr, "weight_decay": decay / (64 * lr)}, {"params": others, "lr": lr, "weight_decay": decay / lr}],
            momentum=MOMENTUM, nesterov=True, fused=True)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.whiten()
        self.now = biases + others + [t for m in self.norms for t in (m.running_mean, m.running_var)]
        self.averages = [t.detach().clone() for t in self.now]
        self.flips = torch.rand(len(labels), device=device) < 0.5

    def network(self, widths):
        nn = torch.nn

        def norm(channels):
            m = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
            m.weight.requires_grad = False
            return m

        def conv(inside, outside):
            m = nn.Conv2d(inside, outside, 3, padding="same", bias=False)
            nn.init.dirac_(m.weight.data[:inside])
            return m

        layers = [nn.Conv2d(3, 24, 2), nn.GELU()]
        layers[0].weight.requires_grad = False
        layers[0].bias.data.zero_()
        inside = 24
        for width in widths:
            layers += [conv(inside, width), nn.MaxPool2d(2), norm(width), nn.GELU(), conv(width, width), norm(width), nn.GELU()]
            inside = width
        layers += [nn.MaxPool2d(3), nn.Flatten(), nn.Linear(inside, 10, bias=False)]
        net = nn.Sequential(*layers).to(self.dtype, memory_format=torch.channels_last)
        for m in net:
            if isinstance(m, nn.BatchNorm2d):
                m.float()
        return net

    def apply(self, images, frozen):
        """The logits. With `frozen` the bias of the whitening layer gets no gradient."""
        first = self.net[0]
        out = torch.nn.functional.conv2d(images, first.weight, first.bias.detach() if frozen else first.bias)
        for layer in self.rest:
            out = layer(out)
        return out / 9

    def normalized(self, pixels):
        images = pixels.permute(0, 3, 1, 2).float() / 255
        return ((images - self.mean) / self.std).to(self.dtype)

    @without_gradients
    def whiten(self):
        images = self.normalized(self.pixels[:5000]).float()
        patches = torch.nn.functional.unfold(images, 2).transpose(1, 2).reshape(-1, 12)
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).cpu(), UPLO="U")  # opening cuSOLVER takes longer
        rows = (vectors / torch.sqrt(values + 5e-4)).T.flip(0).reshape(12, 3, 2, 2)
        self.net[0].weight.copy_(torch.cat((rows, -rows)))

    def shifted(self, pixels, rows, columns):
        """The images, moved by so many rows and columns; pixels beyond the border are reflected."""
        at = torch.arange(SIDE, device=self.device)

        def source(shift):
            beyond = at + shift.view(-1, 1)
            return SIDE - 1 - (SIDE - 1 - beyond.abs()).abs()

        n = len(pixels)
        return pixels[torch.arange(n, device=self.device).view(n, 1, 1), source(rows).view(n, SIDE, 1), source(columns).view(n, 1, SIDE)]

    def batch(self, indices):
        n = len(indices)
        rows, columns = (torch.randint(0, 2 * REACH + 1, (2 * n,), device=self.device) - REACH).split(n)
        images = self.normalized(self.shifted(self.pixels[indices], rows, columns))
        images = torch.where(self.flips[indices].view(n, 1, 1, 1), images.flip(-1), images)
        return images.contiguous(memory_format=torch.channels_last), self.labels[indices]

    def rate(self, step):
        if step < self.rise:
            return 0.2 + 0.8 * step / self.rise
        return 1 - 0.93 * (step - self.rise) / (self.steps - self.rise)

    def once(self, step):
        epoch, at = divmod(step, self.batches)
        if at == 0:
            self.order = torch.randperm(len(self.labels), device=self.device)
            if epoch > 0:
                self.flips = ~self.flips
            if epoch == 3:
                self.net[0].bias.grad = None
        for group, lr in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = lr * self.rate(step)
        images, labels = self.batch(self.order[at * self.o.batch : (at + 1) * self.o.batch])
        logits = self.forward(images, epoch >= 3)
        loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING, reduction="none").sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.detach()
        if step < self.o.losses:
            print(step, self.loss.item() / self.o.batch, file=sys.stderr)
        done = step + 1
        if done % 5 == 0:
            self.average(0.95**5 * (done / self.steps) ** 3)
        if done == self.steps:
            self.average(1)

    @without_gradients
    def average(self, decay):
        torch._foreach_lerp_(self.averages, self.now, 1 - decay)
        torch._foreach_copy_(self.now, self.averages)

    @without_gradients
    def evaluate(self, pixels, labels, tta):
        self.net.eval()
        right = sum((self.logits(some, tta).argmax(1) == wanted).sum() for some, wanted in zip(pixels.split(2000), labels.split(2000)))
        return right.item() / len(labels)

    @without_gradients
    def logits(self, pixels, tta):
        """The weighted mean of the logits of all views."""
        total = 0
        for shift, weight in [(0, 0.5), (-1, 0.25), (1, 0.25)] if tta == 2 else [(0, 1)]:
            move = torch.full((len(pixels),), shift, device=self.device)
            images = self.normalized(self.shifted(pixels, move, move)).contiguous(memory_format=torch.channels_last)
            logits = self.apply(images, True).float()
            if tta > 0:
                logits = (logits + self.apply(images.flip(-1), True).float()) / 2
            total = total + weight * logits
        return total


if __name__ == "__main__":
    main()
