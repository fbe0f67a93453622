"""Sentence encoders in Python: sentence-transformers behind a queue that batches what waits, and infinity-emb where it is installed."""

import asyncio
import glob
import json
import os
import random
import re
import threading
import time
from concurrent.futures import Future

import torch
from peer import serve

state = {}
SIZES = 16, 32, 64, 128, 256


def paragraphs(root):
    """The paragraphs of the repository's documents and comments, as texts of real lengths."""
    texts = []
    for path in glob.glob(os.path.join(root, "**", "*.md"), recursive=True) + glob.glob(os.path.join(root, "cgotorch", "**", "*.go"), recursive=True):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        if path.endswith(".go"):
            text = "\n".join(line[3:] if line.startswith("// ") else "" for line in text.split("\n"))
        texts += [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
    return sorted({t[:3000] for t in texts if len(t) > 20})


def make(root, folder, brief):
    """Writes two folders of BGE-base's shapes with random weights, an encoder and a reranker, and the texts."""
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

    texts = paragraphs(root)
    random.Random(1).shuffle(texts)
    tokens = BertWordPieceTokenizer(lowercase=True)
    tokens.train_from_iterator(texts, vocab_size=2000 if brief else 30522, min_frequency=1)
    os.makedirs(folder, exist_ok=True)
    tokens.save(os.path.join(folder, "tokenizer.json"))
    fast = BertTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), model_max_length=512)
    shapes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128) if brief else {}
    config = BertConfig(vocab_size=30522, num_labels=1, **shapes)
    torch.manual_seed(1)
    for name, model in [("base", BertModel(config)), ("rank", BertForSequenceClassification(config))]:
        model.save_pretrained(os.path.join(folder, name))
        fast.save_pretrained(os.path.join(folder, name))
    transformer = Transformer(os.path.join(folder, "base"), max_seq_length=512)
    SentenceTransformer(modules=[transformer, Pooling(config.hidden_size, pooling_mode="cls"), Normalize()]).save(os.path.join(folder, "embed"))
    CrossEncoder(os.path.join(folder, "rank"), max_length=512).save(os.path.join(folder, "rerank"))
    with open(os.path.join(folder, "texts.json"), "w") as f:
        json.dump(texts, f)
    lengths = sorted(len(e.ids) for e in tokens.encode_batch(texts))
    return {"texts": len(texts), "median": lengths[len(lengths) // 2], "most": lengths[-1]}


class Queue:
    """Computes what waits, in a thread of its own. sentence-transformers orders it by length and cuts it into batches."""

    def __init__(self, compute, most):
        self.compute, self.most = compute, most
        self.waiting, self.news = [], threading.Condition()
        threading.Thread(target=self.loop, daemon=True).start()

    def ask(self, items):
        f = Future()
        with self.news:
            self.waiting.append((items, f))
            self.news.notify()
        return f

    def loop(self):
        while True:
            with self.news:
                while not self.waiting:
                    self.news.wait()
                taken, n = [], 0
                while self.waiting and (not taken or n + len(self.waiting[0][0]) <= self.most):
                    n += len(self.waiting[0][0])
                    taken.append(self.waiting.pop(0))
            rows = self.compute([item for items, _ in taken for item in items])
            for items, f in taken:
                f.set_result(rows[: len(items)])
                rows = rows[len(items) :]


def load(folder, device, kind, half, compiled, count):
    """Loads a model of make, and takes the batch size with which it answers `count` requests fastest, compiled or not."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    arguments = {"dtype": torch.bfloat16 if half else torch.float32, "attn_implementation": "sdpa"}
    with open(os.path.join(folder, "texts.json")) as f:
        state["texts"] = json.load(f)
    if kind == "embed":
        model = SentenceTransformer(os.path.join(folder, "embed"), device=device, model_kwargs=arguments)
        compute = lambda items, batch: model.encode(items, batch_size=batch, show_progress_bar=False, convert_to_numpy=True)
    else:
        model = CrossEncoder(os.path.join(folder, "rerank"), device=device, model_kwargs=arguments)
        compute = lambda items, batch: model.predict(items, batch_size=batch, show_progress_bar=False)
    items = [item for r in requests(kind, count) for item in r]

    def seconds(batch):
        compute(items, batch)
        began = time.perf_counter()
        compute(items, batch)
        return time.perf_counter() - began

    took, batch = min((seconds(n), n) for n in SIZES)
    if compiled:
        inner = model[0].auto_model if kind == "embed" else model.model
        eager = inner.forward
        inner.forward = torch.compile(eager, dynamic=True)
        compute(items, batch)  # compiles
        if compiled := (again := seconds(batch)) < took:
            took = again
        else:
            inner.forward = eager
    state["queue"] = Queue(lambda some: compute(some, batch), 512)
    return {"settings": f"batches of {batch}, compiled {compiled}, {count / took:.0f}/s offline"}


def requests(kind, n):
    """n requests: one text each, or a query with 100 texts each."""
    texts = state["texts"]
    if kind == "embed":
        return [[texts[i % len(texts)]] for i in range(n)]
    return [[(texts[(7 * i) % len(texts)][:100], texts[(100 * i + k) % len(texts)]) for k in range(100)] for i in range(n)]


def rate(kind, clients, count):
    """Requests a second of so many clients, each of which asks again when it has an answer."""
    all_of_them, next_one, lock = requests(kind, count), iter(range(count)), threading.Lock()
    took = []

    def client():
        while True:
            with lock:
                i = next(next_one, None)
            if i is None:
                return
            began = time.perf_counter()
            state["queue"].ask(all_of_them[i]).result()
            took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = time.perf_counter() - began
    took.sort()
    return {"rate": count / seconds, "p50": 1e3 * took[len(took) // 2], "p99": 1e3 * took[int(0.99 * (len(took) - 1))]}


def infinity(folder, device, kind, clients, count):
    """The best rate of infinity-emb's engine in the process, by the size of batches."""
    rate, batch = max((infinity_of(folder, device, kind, clients, count, n), n) for n in (32, 64, 256))
    return {"rate": rate, "settings": f"batches of {batch}"}


def infinity_of(folder, device, kind, clients, count, batch):
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    with open(os.path.join(folder, "texts.json")) as f:
        state["texts"] = json.load(f)
    name = "embed" if kind == "embed" else "rerank"
    engine = AsyncEmbeddingEngine.from_args(EngineArgs(model_name_or_path=os.path.join(folder, name), engine="torch", device=device.split(":")[0], dtype="bfloat16", batch_size=batch, model_warmup=False))

    async def run():
        all_of_them = requests(kind, count)
        async with engine:

            async def client(k, of):
                for i in range(k, of, clients):
                    r = all_of_them[i]
                    if kind == "embed":
                        await engine.embed(sentences=r)
                    else:
                        await engine.rerank(query=r[0][0], docs=[p[1] for p in r])

            await asyncio.gather(*(client(k, min(count, 2 * clients)) for k in range(clients)))
            began = time.perf_counter()
            await asyncio.gather(*(client(k, count) for k in range(clients)))
            return time.perf_counter() - began

    return count / asyncio.run(run())


if __name__ == "__main__":
    serve(make, load, rate, infinity)
