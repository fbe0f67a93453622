"""Writes testdata/: tiny random models as sentence-transformers saves them, with what it makes of texts.

Needs torch 2.11.0, transformers 5.17.0 and sentence-transformers 6.2.0, on the CPU. Everything follows from seeds.
Each model gets testdata/NAME with its files and expected.json: {"texts", "vectors"}, also with "tokens" and "prompt", or {"query", "texts", "scores"}.
"""
import json
import pathlib
import shutil

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent / "testdata"
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

WORDS = "the tide of a small harbour turns twice in one day and lifts each boat from its mud so that men who fish can sail out by night".split()
TEXTS = ["A boat.", "The tide turns.", "", "men who fish sail out by night", " ".join(WORDS), "Ünïcode, näïve? [SEP] <pad> </s> 42!", "the tide turns.", "mud",
         " ".join(WORDS[::-1] * 3), "so that each boat sails", " ".join(WORDS[3:] * 7)]
QUERY = "when does the tide turn?"


def tokens(kind, names):
    """Returns a tokenizer over WORDS. names are the special tokens, in the order of their ids."""
    model, trainer = {"WordPiece": (models.WordPiece, trainers.WordPieceTrainer), "BPE": (models.BPE, trainers.BpeTrainer)}[kind]
    t = Tokenizer(model(unk_token=names[-1]))
    if kind == "WordPiece":
        t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(TEXTS + [QUERY], trainer(vocab_size=90, special_tokens=names, show_progress=False))
    return t


def around(t, begin, end, pair):
    t.post_processor = processors.TemplateProcessing(single=f"{begin} $A {end}".strip(), pair=pair, special_tokens=[(n, t.token_to_id(n)) for n in (begin, end) if n])
    return t


def tokenizer(family, limit):
    if family == "bert":
        t = around(tokens("WordPiece", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]), "[CLS]", "[SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
        named = dict(pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    elif family == "qwen3":
        t = around(tokens("BPE", ["<pad>", "<end>", "<unk>"]), "", "<end>", "$A $B <end>")
        named = dict(pad_token="<pad>", unk_token="<unk>", eos_token="<end>")
    else:
        kind = "WordPiece" if family == "mpnet" else "BPE"
        t = around(tokens(kind, ["<s>", "<pad>", "</s>", "<unk>"]), "<s>", "</s>", "<s> $A </s> </s> $B </s>")
        named = dict(pad_token="<pad>", cls_token="<s>", sep_token="</s>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=t, model_max_length=limit, **{"model_input_names": ["input_ids", "attention_mask"], **named})


def fill(model):
    """Gives every parameter random numbers of a size that shows in the result."""
    for name, p in model.named_parameters():
        with torch.no_grad():
            if "norm" in name.lower() and name.endswith("weight"):
                p.normal_(1, 0.2)
            else:
                p.normal_(0, 0.4 if p.dim() > 1 else 0.1)


BASE = dict(vocab_size=90, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64)
MODERN = dict(BASE, num_hidden_layers=4, max_position_embeddings=256, local_attention=8, pad_token_id=1, global_attn_every_n_layers=3, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)
LOCAL = dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=900.0), sliding_attention=dict(rope_type="default", rope_theta=30.0)))
DECODER = dict(BASE, num_key_value_heads=1, head_dim=16, pad_token_id=0, bos_token_id=None, eos_token_id=1)


def dense(inside, out, activation, bias=True):
    return lambda: Dense(inside, out, bias=bias, activation_function=activation)


# name: (family, config, max_seq_length or None, modes of Pooling, further modules)
EMBEDDERS = {
    "bert": ("bert", transformers.BertConfig(**BASE), 20, "mean", [Normalize]),
    "bert-dense": ("bert", transformers.BertConfig(**dict(BASE, hidden_act="gelu_new", type_vocab_size=1)), None, "cls", [dense(16, 10, torch.nn.Tanh()), Normalize]),
    "bert-relu": ("bert", transformers.BertConfig(**dict(BASE, hidden_act="relu")), None, ("mean_sqrt_len_tokens", "lasttoken"), [dense(32, 12, torch.nn.Identity(), False)]),
    "roberta": ("roberta", transformers.RobertaConfig(**dict(BASE, hidden_act="silu", pad_token_id=1)), 50, ("mean", "max"), []),
    "xlm-roberta": ("xlm-roberta", transformers.XLMRobertaConfig(**dict(BASE, hidden_act="quick_gelu", pad_token_id=1, type_vocab_size=1)), 40, "weightedmean", [dense(16, 16, torch.nn.GELU())]),
    "mpnet": ("mpnet", transformers.MPNetConfig(**dict(BASE, max_position_embeddings=258)), 256, "mean", [Normalize]),
    "modernbert": ("modernbert", transformers.ModernBertConfig(**MODERN, **LOCAL), None, "cls", []),
    "modernbert-bias": ("modernbert", transformers.ModernBertConfig(**dict(MODERN, norm_bias=True, attention_bias=True, mlp_bias=True, hidden_activation="gelu_pytorch_tanh")), 60, "mean", [Normalize]),
    "qwen3": ("qwen3", transformers.Qwen3Config(**dict(DECODER, max_position_embeddings=256, tie_word_embeddings=True)), None, "lasttoken", [Normalize]),
}

# name: (family, config, activation of the scores)
RANKERS = {
    "cross-bert": ("bert", transformers.BertConfig(**dict(BASE, num_labels=1)), None),
    "cross-xlm-roberta": ("xlm-roberta", transformers.XLMRobertaConfig(**dict(BASE, num_labels=1, pad_token_id=1, type_vocab_size=1, max_position_embeddings=66)), torch.nn.Identity()),
    "cross-mpnet": ("mpnet", transformers.MPNetConfig(**dict(BASE, num_labels=1, max_position_embeddings=66)), None),
    "cross-modernbert": ("modernbert", transformers.ModernBertConfig(**dict(MODERN, num_labels=1, classifier_pooling="mean", classifier_bias=True)), None),
}


def write(folder, **expected):
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            expected[name] = [[float(f"{v:.9g}") for v in row] for row in value.double().tolist()]
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")
    for path in folder.rglob("README.md"):
        path.unlink()


def embedder(name, family, config, limit, modes, modules):
    folder = FOLDER / name
    torch.manual_seed(len(name))
    model = transformers.AutoModel.from_config(config)
    fill(model)
    model.save_pretrained(folder)
    tokenizer(family, 64 if family == "bert" else 60 if "roberta" in family else 250).save_pretrained(folder)
    transformer = Transformer(str(folder), **({"max_seq_length": limit} if limit else {}))
    parts = [transformer, Pooling(config.hidden_size, modes)] + [make() for make in modules]
    for part in parts[2:]:
        fill(part)
    prompts = dict(prompts={"query": "find the boat: ", "document": "mud "}, default_prompt_name="document") if name in ("bert-relu", "qwen3") else {}
    st = SentenceTransformer(modules=parts, device="cpu", **prompts).eval()
    shutil.rmtree(folder)
    st.save(str(folder))
    if name == "bert":  # what older releases write, and a tokenizer that cuts and fills up in its own way
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit, "do_lower_case": False}))
        file = json.loads((folder / "tokenizer.json").read_text())
        file["truncation"] = dict(direction="Right", max_length=9, strategy="LongestFirst", stride=0)
        file["padding"] = dict(strategy={"Fixed": 9}, direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0, pad_token="[PAD]")
        (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False))
        st = SentenceTransformer(str(folder), device="cpu")
    expected = dict(texts=TEXTS, vectors=st.encode(TEXTS, convert_to_tensor=True, batch_size=3))
    if prompts:
        expected["query"] = st.encode(TEXTS, convert_to_tensor=True, prompt_name="query")
    write(folder, **expected)


def ranker(name, family, config, activation):
    folder = FOLDER / name
    torch.manual_seed(len(name))
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    fill(model)
    model.save_pretrained(folder)
    tokenizer(family, 62).save_pretrained(folder)
    ce = CrossEncoder(str(folder), device="cpu", **({"activation_fn": activation} if activation else {}))
    if name == "cross-mpnet":  # the folder stays as transformers writes it
        pass
    else:
        shutil.rmtree(folder)
        ce.save_pretrained(str(folder))
    scores = ce.predict([(QUERY, t) for t in TEXTS], convert_to_tensor=True)
    write(folder, query=QUERY, texts=TEXTS, scores=scores.view(1, -1))


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, case in EMBEDDERS.items():
        embedder(name, *case)
    for name, case in RANKERS.items():
        ranker(name, *case)
