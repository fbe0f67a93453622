"""Writes model/: a little Switch Transformer that answers the questions below, and answers.json, what transformers makes of them.

Needs torch 2.11.0, transformers 5.17.0 and sentencepiece 0.2.3, on the CPU, for about a minute. Everything follows from one seed;
all text is this file's own. The table of characters in model/tokenizer.json is SentencePiece's nmt_nfkc, which T5 has too.

    python examples/switch/make.py
"""
import collections
import json
import pathlib
import shutil
import string
import tempfile

import sentencepiece
import torch
from tokenizers import Tokenizer
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration, T5TokenizerFast

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "model"

PAIRS = [
    ("What is a stream?", "A stream is a queue of work: the device does one thing after another, in the order in which they came."),
    ("What is an event?", "An event is a mark in a stream, and another stream can wait for it."),
    ("What is an expert?", "An expert is a small network that sees only the tokens that are sent to it."),
    ("What does a router do?", "The router looks at each token and sends it to the expert that suits it best."),
    ("Where do the experts live?", "They live in the memory of the host, and come to the device when they are needed."),
    ("Why not keep all experts on the device?", "There are too many of them, and the memory of the device is small."),
    ("What is page-locked memory?", "It is memory of the host that the system never moves, so that the device can read it by itself."),
    ("Why is memory page-locked?", "Because a copy from any other memory makes the host wait."),
    ("How long does a copy take?", "It takes as long as its bytes need to cross the bus: one divides their number by the speed."),
    ("How is a copy hidden?", "It runs on a stream of its own, while another stream computes."),
    ("What is a slot?", "A slot is a place on the device through which experts pass, one after another."),
    ("What is a hit?", "A hit is an expert that was still in its slot when it was wanted again."),
    ("What is a miss?", "A miss is an expert whose copy begins only when somebody asks for it."),
    ("Which expert has to go?", "The one that was used longest ago has to go, or the one that was used least often."),
    ("Can one guess the next expert?", "Yes: ask the next router a block too early, and it is often right."),
    ("What does a wrong guess cost?", "It costs one copy, and the answer stays the same."),
    ("What is a graph?", "A graph is work that was written down once and is started with a single call."),
    ("Who waits for the copy?", "The stream waits on the device, and the host goes on."),
    ("How many experts does a token use?", "It uses one in each sparse layer, and all the others rest."),
    ("What is a token?", "A token is a piece of a word, and the model reads and writes nothing else."),
    ("Is the CPU a device too?", "Yes, but its streams do their work at once."),
    ("Who are you?", "I am a very small model with thirty-two experts, and this is all I know."),
]

VOCABULARY = 384


def make_tokenizer():
    """A unigram vocabulary of the text above in T5's tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text"
        text.write_text("\n".join(line for pair in PAIRS for line in pair) + "\n")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=folder + "/m", vocab_size=VOCABULARY, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            normalization_rule_name="nmt_nfkc", required_chars=string.ascii_letters + string.digits + string.punctuation, hard_vocab_limit=False, num_threads=1, minloglevel=2)
        m = sentencepiece.SentencePieceProcessor(model_file=folder + "/m.model")
        charsmap = charsmap_of(m.serialized_model_proto())
    pieces = [(m.id_to_piece(i), m.get_score(i)) for i in range(m.get_piece_size())]
    return T5TokenizerFast(vocab=pieces, _spm_precompiled_charsmap=charsmap, extra_ids=4)


def charsmap_of(model):
    """Field 2 of the normalizer's spec, which is field 3 of the model, in protobuf's wire format."""
    def fields(data):
        at = 0
        def number():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            key = number()
            if key & 7 == 0:
                number()
            elif key & 7 == 5:
                at += 4
            elif key & 7 == 1:
                at += 8
            else:
                length = number()
                yield key >> 3, data[at:at + length]
                at += length
    spec = next(value for field, value in fields(model) if field == 3)
    return next(value for field, value in fields(spec) if field == 2)


def batch_of(tokenizer):
    questions = tokenizer([q for q, _ in PAIRS], padding=True, return_tensors="pt")
    labels = tokenizer([a for _, a in PAIRS], padding=True, return_tensors="pt").input_ids
    return questions, labels.masked_fill(labels == tokenizer.pad_token_id, -100)


def train(tokenizer):
    config = SwitchTransformersConfig(
        vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_heads=4, num_layers=4, num_decoder_layers=4, num_sparse_encoder_layers=2,
        num_sparse_decoder_layers=2, num_experts=8, expert_capacity=64, dropout_rate=0.0, router_jitter_noise=0.0, decoder_start_token_id=0)
    model = SwitchTransformersForConditionalGeneration(config)
    questions, labels = batch_of(tokenizer)
    steps = 450
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.1)
    logits = routers(model)
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        logits.clear()
        loss = model(**questions, labels=labels, output_router_logits=False).loss
        total = loss + 0.02 * sum(balance(l) for l in logits)
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, with balance {total.item():.4f}", flush=True)
    return model.eval()


def routers(model):
    """A list to which every forward pass adds the router's probabilities [tokens, experts] of each sparse layer."""
    seen = []
    for module in model.modules():
        if type(module).__name__ == "SwitchTransformersTop1Router":
            module.register_forward_hook(lambda m, inputs, out: seen.append(m.classifier(inputs[0].float()).softmax(-1).flatten(0, -2)))
    return seen


def balance(probabilities):
    """1 where the experts are used alike, more where they are not: the loss of Fedus, Zoph and Shazeer (2021)."""
    experts = probabilities.shape[-1]
    share = torch.nn.functional.one_hot(probabilities.argmax(-1), experts).float().mean(0)
    return experts * (share * probabilities.mean(0)).sum()


def save(model, tokenizer):
    shutil.rmtree(FOLDER, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    for path in FOLDER.iterdir():
        if path.name not in ("config.json", "model.safetensors", "tokenizer.json"):
            path.unlink()
    (FOLDER / "model.safetensors").chmod(0o644)


def answers():
    """What transformers answers, greedily, in float32 and with the tokenizer as they were saved."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    model = SwitchTransformersForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    seen, used, lines, margin = routers(model), collections.defaultdict(collections.Counter), [], 1e9
    for question, answer in PAIRS:
        ids = tokenizer.encode(question).ids
        seen.clear()
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False, output_logits=True, return_dict_in_generate=True)
        for i, probabilities in enumerate(seen):
            used[i if i < 2 else 2 + i % 2].update(probabilities.argmax(-1).tolist())
        for logits in out.logits:
            best = logits.topk(2).values[0]
            margin = min(margin, (best[0] - best[1]).item())
        tokens = out.sequences[0, 1:].tolist()
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        print(question, "->", text)
        assert text == answer, answer
        lines.append(json.dumps({"prompt": question, "text": text}))
    for layer, counts in sorted(used.items()):
        print(f"sparse layer {layer}: tokens by expert {[counts[i] for i in range(model.config.num_experts)]}")
        assert len(counts) == model.config.num_experts, "an expert has nothing to do"
    print(f"the smallest distance of a best logit from the second is {margin:.3f}")
    assert margin > 1, "bfloat16 might choose other tokens"
    (HERE / "answers.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main():
    torch.manual_seed(20)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    save(train(tokenizer), tokenizer)
    answers()


if __name__ == "__main__":
    main()
