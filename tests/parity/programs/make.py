"""Exports models with torch.export, and writes what PyTorch computes with them.

    make.py FOLDER [NAME ...]

For each NAME the folder gets NAME.pt2, the arguments and results of two calls in NAME.json, and
their tensors in NAME.safetensors. For a NAME that begins with train_ it is the losses of a training.
Without a NAME all programs are made. Models have random weights. torchvision.txt has the path of
torchvision's operators.
"""

import collections
import json
import os
import pathlib
import sys
import warnings

import torch
import torchvision
from safetensors.torch import save_file
from torch.export import Dim

import detection
import stress

STEPS = int(os.environ.get("STEPS", 20))  # of training
warnings.filterwarnings("ignore")


def pictures(side=64, batch=2, frames=0):
    shape = (batch, 3, frames, side, side) if frames else (batch, 3, side, side)
    return torch.randn(shape)


def classifiers():
    sides = {"inception_v3": 128, "vit_b_16": 224, "vit_b_32": 224, "vit_l_16": 224, "vit_l_32": 224, "vit_h_14": 224,
             "maxvit_t": 224, "alexnet": 96, "squeezenet1_0": 96, "squeezenet1_1": 96}
    heavy = {"vit_h_14", "vit_l_16", "vit_l_32", "regnet_y_128gf"}
    for name in torchvision.models.list_models(module=torchvision.models):
        if name not in heavy:
            yield name, lambda name=name: torchvision.models.get_model(name), sides.get(name, 64), 0


def others():
    for name in torchvision.models.list_models(module=torchvision.models.segmentation):
        yield name, lambda name=name: torchvision.models.get_model(name, weights=None, weights_backbone=None), 64, 0
    for name in torchvision.models.list_models(module=torchvision.models.video):
        side = 224 if name.startswith(("mvit", "swin")) else 64
        yield name, lambda name=name: torchvision.models.get_model(name), side, 16 if name.startswith("mvit") else 8


def scramble(model):
    """Gives normalisation layers statistics and weights that are not 0 and 1."""
    for m in model.modules():
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.8, 1.2)
    return model


class Text:
    """Turns arguments and results into JSON, and their tensors into a dict by number."""

    def __init__(self):
        self.tensors = {}

    def of(self, v):
        if isinstance(v, torch.Tensor):
            key = str(len(self.tensors))
            self.tensors[key] = v.detach().contiguous().clone()
            return {"tensor": key}
        if isinstance(v, (list, tuple, collections.deque)) and not hasattr(v, "_fields"):
            return {"list": [self.of(i) for i in v]}
        if hasattr(v, "_asdict"):
            v = v._asdict()
        if hasattr(v, "__dataclass_fields__"):
            v = {k: getattr(v, k) for k in v.__dataclass_fields__ if getattr(v, k) is not None}
        if isinstance(v, dict):
            return {"dict": {str(k): self.of(i) for k, i in v.items()}}
        if type(v) in torch.utils._pytree.SUPPORTED_NODES:  # such as a cache of transformers
            children, names = torch.utils._pytree.SUPPORTED_NODES[type(v)].flatten_fn(v)
            return self.of(dict(zip(names[0], children)))
        if isinstance(v, int) and not isinstance(v, bool):
            return {"int": str(v)}
        return {"value": v if not isinstance(v, float) or v == v else "NaN"}


def copied(v):
    return torch.utils._pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, v)


def write(folder, name, model, calls, dynamic, strict=False, decompose=False, training=False):
    """Exports for the first call and writes the results of all calls."""
    exported = torch.export.export(model, copied(calls[0][0]), copied(calls[0][1]), dynamic_shapes=dynamic, strict=strict)
    if decompose:
        exported = exported.run_decompositions()
    torch.export.save(exported, folder / f"{name}.pt2")
    loaded = torch.export.load(folder / f"{name}.pt2").module()
    text, rows = Text(), []
    for args, kwargs in calls:
        row = {"args": text.of(list(args))["list"], "kwargs": text.of(kwargs)["dict"]}
        args, kwargs = copied(args), copied(kwargs)
        torch.manual_seed(5)
        with torch.set_grad_enabled(training):
            row["result"] = text.of(loaded(*args, **kwargs))
        row["after"] = text.of(list(args))["list"]  # arguments may be written to
        rows.append(row)
    state = {k: text.of(v.detach())["tensor"] for k, v in loaded.state_dict().items()} if training else {}
    save_file(text.tensors, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps({"threads": torch.get_num_threads(), "calls": rows, "state": state}))


def trained():
    """Models for training, with their input and the number of classes."""
    vision = torchvision.models
    image = lambda side: lambda: torch.randn(4, 3, side, side)
    for name, side, rate in [("resnet18", 32, 0.01), ("mobilenet_v3_small", 64, 0.01), ("efficientnet_b0", 64, 0.001), ("convnext_tiny", 64, 0.01),
                             ("swin_t", 64, 0.01), ("shufflenet_v2_x0_5", 64, 0.01), ("mnasnet0_5", 64, 0.01), ("densenet121", 32, 0.01)]:
        yield "train_" + name, lambda name=name: vision.get_model(name, num_classes=10), image(side), rate
    small = lambda: vision.VisionTransformer(32, 8, 2, 2, 32, 64, dropout=0.1, num_classes=10)
    yield "train_vit", small, image(32), 0.05
    yield "train_text", stress.TextClassifier, lambda: torch.randint(0, 50, (4, 12)), 0.1


def write_training(folder, name, model, x, rate, steps):
    """Trains the exported program, and writes the losses."""
    model.train()
    exported = torch.export.export(model, (x,), strict=False)
    torch.export.save(exported, folder / f"{name}.pt2")
    program = torch.export.load(folder / f"{name}.pt2").module()
    labels = torch.randint(0, 10, (len(x),))
    optimizer = torch.optim.SGD(program.parameters(), lr=rate, momentum=0.9, fused=True)  # the order of operations is that of package optim
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(program(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save_file({"x": x, "labels": labels}, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps({"losses": losses, "rate": rate}))


def main():
    folder = pathlib.Path(sys.argv[1])
    wanted = sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    detection.exportable()
    batch = Dim("batch")
    failures = {}

    def attempt(name, make):
        if wanted and name not in wanted:
            return
        torch.manual_seed(0)
        try:
            make()
        except Exception as e:  # a model that PyTorch does not export
            failures[name] = f"{type(e).__name__}: {str(e)[:300]}"

    for name, make, side, frames in [*classifiers(), *others()]:
        def one(name=name, make=make, side=side, frames=frames):
            model = scramble(make().eval())
            calls = [((pictures(side, n, frames),), {}) for n in (2, 3)]
            try:
                write(folder, name, model, calls, ({0: batch},))
            except Exception:  # the batch cannot change
                write(folder, name, model, calls[:1], None)
        attempt(name, one)
    for name, program in stress.programs().items():
        attempt(name, lambda program=program, name=name: write(folder, name, *program[:3], **program[3]))
    for name, make in detection.programs():
        def one(name=name, make=make):
            model, calls = make()
            write(folder, name, model, [(args, {}) for args in calls], None)
        attempt(name, one)
    for name, make, x, rate in trained():
        attempt(name, lambda: write_training(folder, name, make(), x(), rate, STEPS))
    (folder / "torchvision.txt").write_text(str(next(pathlib.Path(torchvision.__file__).parent.glob("_C*.so"))))
    (folder / "failures.json").write_text(json.dumps(failures, indent=1))
    print(json.dumps(failures, indent=1))


if __name__ == "__main__":
    main()
