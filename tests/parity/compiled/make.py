"""Compiles models with AOTInductor, and writes what Python computes with the packages.

    make.py FOLDER

The folder gets NAME_cpu.pt2 for each model, and NAME_cpu.safetensors with the inputs and results of
calls. On a machine with a GPU both have the ending _cuda instead. torchvision.txt has the path of
torchvision's operators.
A key such as "1.in.0" names the first input of the second call. The model "table" has also results
after its weights were replaced, and the new weights under "weight.NAME".
"""

import pathlib
import sys

import torch
import torchvision
from safetensors.torch import save_file
from torch.export import Dim


class Table(torch.nn.Module):
    """Linear layers and a batch norm, with two inputs and nested results."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 3)
        self.register_buffer("shift", torch.randn(3))

    def forward(self, x, other):
        return self.last(torch.relu(self.norm(self.first(x)))) + self.shift, {"sum": x + other, "first": (x, other * 2)}


class Picture(torch.nn.Module):
    """Convolutions of channels-last images."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 8, 3), torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))

    def forward(self, x):
        return self.layers(x).softmax(1)


class Boxes(torch.nn.Module):
    """Operators of torchvision."""

    def forward(self, features, boxes, scores):
        return torchvision.ops.roi_align(features[None], [boxes], 3, 0.5, 2) * 2, torchvision.ops.nms(boxes, scores, 0.5)


class Count(torch.nn.Module):
    """A buffer that each call changes, and random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count, torch.rand_like(x)


def scramble(model):
    for m in model.modules():
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.8, 1.2)
    return model.eval()


def write(folder, name, device, model, calls, dynamic, weights=None, **options):
    model, calls = model.to(device), [tuple(t.to(device) for t in call) for call in calls]
    weights = weights and {k: t.to(device) for k, t in weights.items()}
    name = f"{name}_{device}"
    exported = torch.export.export(model, calls[0], dynamic_shapes=dynamic)
    path = str(folder / f"{name}.pt2")
    options["aot_inductor.metadata"] = {"torch_version": torch.__version__, "name": name}
    torch._inductor.aoti_compile_and_package(exported, package_path=path, inductor_configs=options)
    loaded = torch._inductor.aoti_load_package(path)
    tensors = {}

    def run(kind):
        for i, call in enumerate(calls):
            for k, t in enumerate(call):
                tensors[f"{i}.in.{k}"] = t.clone().contiguous()
            for k, t in enumerate(torch.utils._pytree.tree_leaves(loaded(*call))):
                tensors[f"{i}.{kind}.{k}"] = t.clone().contiguous()

    with torch.no_grad():
        run("out")
        if weights is not None:
            for k, t in weights.items():
                if t.dim() > 0:
                    tensors[f"weight.{k}"] = t.contiguous()
            names = set(loaded.get_constant_fqns())
            loaded.load_constants({k: t for k, t in weights.items() if k in names}, check_full_update=False)
            run("new")
    save_file(tensors, folder / f"{name}.safetensors")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    (folder / "torchvision.txt").write_text(str(next(pathlib.Path(torchvision.__file__).parent.glob("_C*.so"))))
    make(folder, "cuda" if torch.cuda.is_available() else "cpu")


def make(folder, device):
    torch.manual_seed(0)
    batch = Dim("batch", min=2, max=64)
    table = scramble(Table())
    other = scramble(Table())
    write(folder, "table", device, table, [(torch.randn(n, 6), torch.randn(n, 6)) for n in (4, 7)], ({0: batch}, {0: batch}),
          dict(other.state_dict()), **{"aot_inductor.use_runtime_constant_folding": True})
    pictures = [(torch.randn(n, 3, 16, 16).to(memory_format=torch.channels_last),) for n in (2, 5)]
    write(folder, "picture", device, scramble(Picture()), pictures, ({0: batch},))
    corner = torch.rand(20, 2) * 20
    boxes = torch.cat([corner, corner + 2 + torch.rand(20, 2) * 12], 1)
    write(folder, "boxes", device, Boxes(), [(torch.randn(8, 16, 16), boxes, torch.rand(20)) for _ in range(2)], None)
    write(folder, "count", device, Count(), [(torch.randn(2, 3),) for _ in range(3)], None)


if __name__ == "__main__":
    main()
