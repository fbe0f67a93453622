"""Trains the models of decoder.py with transformers, and opens folders that were saved after training.

Usage: training.py train FOLDER NAME=STEPS ...   each model gets FOLDER/NAME as it was before, with ids.bin (int64 [steps,
batch, n]) and losses.bin (float64 [steps]), and FOLDER/NAME-bfloat16 with the weights in bfloat16.
       training.py open FOLDER ...               each folder gets logits.bin, the logits of its ids.bin's last batch.
Needs torch and transformers, on the CPU. Everything follows from seeds.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

import decoder

BATCH, N = 2, 24


def texts(steps, vocab):
    """Returns sequences that a model can learn: each number is the one before plus a stride of the sequence."""
    g = torch.Generator().manual_seed(7)
    begin, stride = (torch.randint(1, top, (steps, BATCH, 1), generator=g) for top in (vocab, 5))
    return (begin + stride * torch.arange(N)) % vocab


def train(folder, name, steps):
    model = decoder.make(name, 1)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(0.5)
    model.save_pretrained(folder / name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    ids, losses = texts(steps, model.config.vocab_size), []
    for batch in ids:
        logits = model(batch, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (folder / name / "ids.bin").write_bytes(ids.contiguous().numpy().tobytes())
    (folder / name / "losses.bin").write_bytes(torch.tensor(losses, dtype=torch.float64).numpy().tobytes())
    model.to(torch.bfloat16).save_pretrained(folder / (name + "-bfloat16"))


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for module in model.modules():
        if hasattr(module, "limit"):  # older versions take 7, whatever the configuration says
            module.limit = json.loads((folder / "config.json").read_text())["swiglu_limit"]
    ids = torch.frombuffer(bytearray((folder / "ids.bin").read_bytes()), dtype=torch.int64).view(-1, BATCH, N)[-1]
    with torch.no_grad():
        out = model(ids, use_cache=False).logits
    (folder / "logits.bin").write_bytes(out.float().contiguous().numpy().tobytes())


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "train":
        for argument in arguments[1:]:
            name, steps = argument.split("=")
            train(pathlib.Path(arguments[0]), name, int(steps))
    else:
        for folder in arguments:
            logits(pathlib.Path(folder))
