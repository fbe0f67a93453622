"""Writes testdata/: what transformers makes of the text models that the Go tests beside it build.

Needs torch 2.11.0 and transformers 5.17.0, on the CPU. Everything follows from seeds and from ramp(), a formula.
"""
import json
import pathlib
import shutil

import torch
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

FOLDER = pathlib.Path(__file__).parent / "testdata"
torch.set_num_threads(1)


def ramp(*shape, start=0):
    """Float32 numbers in [-0.5, 0.5) that look random, the same in Go."""
    n = torch.Size(shape).numel()
    bits = torch.arange(start, start + n, dtype=torch.int64) * 2654435761 & 0xFFFFFFFF
    return (bits.double() / 2**32 - 0.5).float().reshape(shape)


def number(v):
    return float(f"{float(v):.9g}")


def scale_of(name, shape):
    """A multiple of 1/64, so that products round alike everywhere, that keeps the size of the hidden states about."""
    if name.endswith("layer_norm.weight"):
        return 0.5
    if "classifier.weight" in name:
        return 4.0
    if "classifier.bias" in name:
        return 0.5
    if any(part in name for part in ("shared", "embed_tokens")):
        return 0.5
    if any(part in name for part in ("lm_head", "relative_attention_bias")):
        return 3.0
    spread = 3.5 / shape[-1] ** 0.5
    if ".o." in name or ".wo." in name:
        spread *= 2
    if ".q." in name:
        spread /= 3
    return max(1, round(spread * 64)) / 64


def fill(model):
    """Sets every parameter from ramp(); returns [name, shape, start, scale], start -1 for another name of a tensor that was there."""
    entries, seen = [], set()
    for i, (name, t) in enumerate(model.state_dict().items()):
        start, scale = 100003 * i, scale_of(name, t.shape)
        if t.data_ptr() in seen:
            start = -1
        else:
            seen.add(t.data_ptr())
            t.copy_(ramp(*t.shape, start=start) * scale + (1.0 if name.endswith("layer_norm.weight") else 0.0))
        entries.append([name, list(t.shape), start, scale])
    return entries


def watch_routers(model, into):
    """Adds to into the chosen experts of each sparse layer, in the order in which they run."""
    for module in model.modules():
        if type(module).__name__ == "SwitchTransformersTop1Router":
            module.register_forward_hook(lambda m, _, out: into.append(out[1].argmax(-1).flatten().tolist()))


# The second sequence is padded on the right, as tokenizers pad.
IDS = torch.tensor([[5, 17, 3, 88, 42, 9, 61, 23, 1], [71, 4, 4, 30, 1, 0, 0, 0, 0]])
MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
DECODER_IDS = torch.tensor([[0, 11, 95, 6, 54, 54, 7], [0, 2, 33, 80, 14, 65, 21]])

SMALL = dict(vocab_size=100, d_model=32, d_kv=8, d_ff=48, num_heads=4, decoder_start_token_id=0,
             relative_attention_num_buckets=8, relative_attention_max_distance=12)

CASES = {
    "tied": dict(num_layers=4, num_decoder_layers=4, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, num_experts=6),
    "untied": dict(num_layers=3, num_decoder_layers=2, num_sparse_encoder_layers=3, num_sparse_decoder_layers=0, num_experts=4,
                   router_bias=True, tie_word_embeddings=False, layer_norm_epsilon=1e-3, pad_token_id=3),
}


def case(options):
    config = SwitchTransformersConfig(**SMALL, **options, expert_capacity=1)
    model = SwitchTransformersForConditionalGeneration(config).eval()
    fixture = {"config": json.loads(config.to_json_string(use_diff=False)), "state": fill(model), "runs": []}
    routed = []
    watch_routers(model, routed)
    for mask, length in ((MASK, 7), (MASK, 1), (None, 7)):
        routed.clear()
        logits = model(input_ids=IDS, attention_mask=mask, decoder_input_ids=DECODER_IDS[:, :length]).logits
        fixture["runs"].append({
            "masked": mask is not None, "ids": IDS.tolist(), "mask": MASK.tolist(), "decoder_ids": DECODER_IDS[:, :length].tolist(),
            "logits": [number(v) for v in logits.flatten()], "experts": [list(ids) for ids in routed],
        })
    settings = dict(input_ids=IDS, attention_mask=MASK, max_new_tokens=12, do_sample=False)
    open_ended = model.generate(**settings, eos_token_id=None)
    answers = open_ended[:, 1:].tolist()
    # The token `end` ends one sequence in its middle, and does not end the other sequence.
    end = next(t for row, other in (answers, answers[::-1]) for k, t in enumerate(row[:8]) if k > 1 and t not in row[:k] + other)
    ended = model.generate(**settings, eos_token_id=end)
    fixture["generated"] = {"open": open_ended[:, 1:].tolist(), "eos": end, "ended": ended[:, 1:].tolist()}
    used = {i for run in fixture["runs"] for ids in run["experts"] for i in ids}
    assert used == set(range(config.num_experts)), used
    return fixture


def sparse_layers():
    """[layers, sparse layers asked for, blocks that are sparse]"""
    lines = []
    for layers, wanted in ((12, 6), (12, 0), (12, 5), (12, 12), (12, 24), (3, 2), (1, 0), (1, 1), (4, 1)):
        config = SwitchTransformersConfig(**SMALL | dict(d_model=8, d_ff=8), num_layers=layers, num_sparse_encoder_layers=wanted,
                                          num_decoder_layers=1, num_experts=1)
        blocks = SwitchTransformersForConditionalGeneration(config).encoder.block
        lines.append([layers, wanted, [i for i, b in enumerate(blocks) if b.is_sparse]])
    return lines


def saved():
    """A folder as save_pretrained writes it, and its logits."""
    torch.manual_seed(20)
    config = SwitchTransformersConfig(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_heads=2, num_layers=2, num_decoder_layers=2,
                                      num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=3, decoder_start_token_id=0)
    model = SwitchTransformersForConditionalGeneration(config).eval()
    folder = FOLDER / "saved"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    for extra in folder.iterdir():
        if extra.name not in ("config.json", "model.safetensors"):
            extra.unlink()
    (folder / "model.safetensors").chmod(0o644)
    ids, decoder_ids = IDS[:1] % 64, DECODER_IDS[:1] % 64
    logits = model(input_ids=ids, decoder_input_ids=decoder_ids).logits
    return {"ids": ids.tolist(), "decoder_ids": decoder_ids.tolist(), "logits": [number(v) for v in logits.flatten()]}


def main():
    FOLDER.mkdir(exist_ok=True)
    with torch.no_grad():
        fixtures = {name: case(options) for name, options in CASES.items()}
        fixtures |= {"sparse": sparse_layers(), "saved": saved()}
    for name, fixture in fixtures.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
