"""Makes the .pt2 files beside this file. Needs torch; run it in this folder."""

import io
import json
import pathlib
import zipfile

import torch


class Delay(torch.nn.Module):
    """Returns its input of two calls ago, as int64 whatever the input is, and the input plus one of the last call."""

    def __init__(self):
        super().__init__()
        for name in ("before", "now"):  # PyTorch writes buffers in this order
            self.register_buffer(name, torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.before.copy_(self.now)
        self.now.copy_(x)
        self.count.copy_(x.sum())
        return self.before, self.count


def stripped(v):
    """Without the stack traces, which have paths of the machine."""
    if isinstance(v, dict):
        return {k: stripped(w) for k, w in v.items() if k not in ("stack_trace", "nn_module_stack", "torch_fn")}
    return [stripped(w) for w in v] if isinstance(v, list) else v


class Unbatched(torch.nn.Module):
    """A batch norm behind a convolution without a batch: dimension 1 is then not that of the channels."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv1d(3, 4, 3), torch.nn.BatchNorm1d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(self.convolution(x))


def save(name, program):
    saved = io.BytesIO()
    torch.export.save(program, saved)
    with zipfile.ZipFile(pathlib.Path(__file__).parent / f"{name}.pt2", "w") as to, zipfile.ZipFile(saved) as of:
        for entry in of.namelist():
            data = of.read(entry)
            if entry.endswith("models/model.json"):
                data = json.dumps(stripped(json.loads(data)), separators=(",", ":")).encode()
            if "sample_inputs" not in entry:
                to.writestr(entry, data)


torch.manual_seed(1)
save("delay", torch.export.export(Delay(), (torch.zeros(3),)).run_decompositions())
save("unbatched", torch.export.export(Unbatched().eval(), (torch.zeros(3, 6),)))
