"""Writes python.safetensors, with Python's safetensors 0.8.0 and numpy, and says what torch reads from a file of ours.

    python make.py                # writes python.safetensors
    python make.py FILE           # prints what safetensors.torch reads from FILE
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent


def write():
    import torch
    from safetensors.torch import save_file

    tensors = {
        "layer1.0.conv1.weight": torch.arange(54, dtype=torch.float32).reshape(2, 3, 3, 3) / 8 - 2,
        "layer1.0.bn1.num_batches_tracked": torch.tensor(7, dtype=torch.int64),
        "half": torch.tensor([0.5, -2.0, 65504.0], dtype=torch.float16),
        "brain": torch.tensor([[1.0], [-3.5]], dtype=torch.bfloat16),
        "double": torch.tensor([3.141592653589793], dtype=torch.float64),
        "complex": torch.tensor([1 + 2j], dtype=torch.complex64),
        "bytes": torch.tensor([0, 127, 255], dtype=torch.uint8),
        "signed": torch.tensor([-128, 127], dtype=torch.int8),
        "short": torch.tensor([-32768], dtype=torch.int16),
        "int": torch.tensor([[-(2**31), 2**31 - 1]], dtype=torch.int32),
        "flags": torch.tensor([True, False]),
        "nothing": torch.empty(0, 5),
        'odd "name" <é>': torch.tensor([1.0]),
    }
    save_file(tensors, HERE / "python.safetensors", metadata={"format": "pt"})


def show(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as f:
        print(dict(sorted((f.metadata() or {}).items())))
        for name in f.keys():
            t = f.get_tensor(name)
            print(name, t.dtype, tuple(t.shape), t.flatten().tolist())


write() if len(sys.argv) == 1 else show(sys.argv[1])
