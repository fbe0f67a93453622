"""Makes delay.pt2 beside this file: programs whose results are also written to buffers. Needs torch; run it in this folder."""

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


saved = io.BytesIO()
torch.export.save(torch.export.export(Delay(), (torch.zeros(3),)).run_decompositions(), saved)
with zipfile.ZipFile(pathlib.Path(__file__).parent / "delay.pt2", "w") as to, zipfile.ZipFile(saved) as of:
    for name in of.namelist():
        data = of.read(name)
        if name.endswith("models/model.json"):
            data = json.dumps(stripped(json.loads(data)), separators=(",", ":")).encode()
        if "sample_inputs" not in name:
            to.writestr(name, data)
