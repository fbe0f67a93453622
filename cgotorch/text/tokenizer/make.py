"""Writes testdata/: small tokenizers, and what transformers makes of text with them.

Needs transformers 5.17.0, tokenizers 0.23.3 and sentencepiece 0.2.3. Equal runs give equal files. Names make some files alone.

    python cgotorch/text/tokenizer/make.py [t5 converted llama3 ...]
"""
import functools
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FOLDER = pathlib.Path(__file__).parent / "testdata"

TEXT = """
The stream waits for the copy, and the copy waits for nobody.
Every expert has a slot, and every slot has had many experts.
Der Strom wartet auf die Kopie; über die Brücke fließt täglich Wasser, außer am Sonntag.
Größere Bücher müssen früher gedruckt werden, denn die Züge fahren pünktlich.
Le café est déjà fermé, et l'élève a oublié sa clé près de la fenêtre.
Où étais-tu l'été passé ? À la forêt, où le hêtre a perdu ses feuilles.
El niño comió una piña en España, y mañana irá a la montaña.
今日は天気がいいから、海へ行きましょう。 昨日は雨でした。
流在设备上按顺序工作，主机不等待。 专家住在主机的内存里。
Поток ждёт копию, а хост работает дальше.
One, two, three: 1 2 3 10 100 1000. 50 % of 4 GiB is 2 GiB!
""".strip()

STRINGS = [
    "", " ", "   ", "a", "Every expert has a slot.", "two  spaces,   three ", " leading", "trailing ", "tab\there\nand a new line\r\n",
    "naïve café", "cafe\u0301 e\u0301le\u0300ve", "über Größe ÄÖÜ ß", "niño España", "今日は天気がいい", "専門家 专家 内存", "ｆｕｌｌ　ｗｉｄｔｈ １２３", "ﬁne ﬂow ½ ² ™ Ⅳ ㌔",
    "ждёт Поток", "emoji 🙂 and 👩‍👩‍👧 and 🇫🇷", "🙂", "🙂🙂🙂 x 🙂", "unknown ☃ ʤ 𝔘 ꙮ", "zero\u200bwidth\u00a0space\u3000wide", "\ufeffmark", "control \x01 \x7f \x00 end",
    "</s>", "a</s>b", "<pad><pad>", "word<unk>word", "<extra_id_0> fills <extra_id_1>", "<extra_id_9>", "x <extra_id_0>", "<extra_id_0", "</s></s> </s>",
    "▁under▁lined", "▁", "▁▁ ▁", "don't stop", "A" * 50, "waits" * 30, "한국어 각", "ไทย เก้า", "हिन्दी क्षि", "אבג", "العربية لا", "e\u0301\u0301\u0323x", "\u1100\u1161\u11a8",
    "\u0301 alone", "a\u0308\u0301", "Ǆ ǅ ſ K Å", "1,000.50 %", "…—–“quoted”", "\u2028line\u2029paragraph\u0085next", "lower UPPER", "a  \u00a0 b", "\u1680ogham", "\u180evowel",
    "<0x41>", "<0x0A>", "\\ / | ~ ^ `", "ab\u00adcd", "İI", "soft <special> tail", "Soft <SPECIAL> tail", "x<special>y <lonely> <lonely>z a<lonely>", "wide  <wide>  space",
]


def module(*path):
    """Another script of the repository, as a module."""
    spec = importlib.util.spec_from_file_location(path[0], pathlib.Path(__file__).parents[3].joinpath(*path))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def switch():
    """examples/switch's script, which has sentencepiece's rules for Unicode in a form that transformers takes."""
    return module("examples", "switch", "make.py")


def sentences(vocabulary, **options):
    """A unigram vocabulary of TEXT, and the rules by which it was normalized."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text"
        text.write_text(TEXT + "\n")
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=folder + "/m", vocab_size=vocabulary, model_type="unigram", pad_id=0, eos_id=1,
                                                 unk_id=2, bos_id=-1, hard_vocab_limit=False, num_threads=1, minloglevel=2, **options)
        m = sentencepiece.SentencePieceProcessor(model_file=folder + "/m.model")
        return [(m.id_to_piece(i), m.get_score(i)) for i in range(m.get_piece_size())], switch().charsmap_of(m.serialized_model_proto())


def t5():
    """As T5 and the Switch Transformer have it."""
    from transformers import T5TokenizerFast

    pieces, charsmap = sentences(400, normalization_rule_name="nmt_nfkc")
    with tempfile.TemporaryDirectory() as folder:
        T5TokenizerFast(vocab=pieces, _spm_precompiled_charsmap=charsmap, extra_ids=3).save_pretrained(folder)
        shutil.copy(folder + "/tokenizer.json", FOLDER / "t5.json")
        t = T5TokenizerFast.from_pretrained(folder)
    raw = Tokenizer.from_file(str(FOLDER / "t5.json"))
    lines = []
    for s in STRINGS:
        ids = t(s).input_ids
        assert ids == raw.encode(s).ids, s
        lines.append({"text": s, "ids": ids, "plain": t(s, add_special_tokens=False).input_ids, "decoded": raw.decode(ids), "whole": raw.decode(ids, skip_special_tokens=False)})
        assert lines[-1]["decoded"] == t.decode(ids, skip_special_tokens=True), s
    return lines


def converted():
    """As transformers converts sentencepiece's models with byte fallback; rules for Unicode of its own, and tokens of every kind."""
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv" # characters and their replacements, in hexadecimal
        rules.write_text("A0\t20\n9\t20\nA\t20\n2014\t2D\nFB01\t66 69\n65 301\tE9\n")
        pieces, charsmap = sentences(600, normalization_rule_tsv=str(rules), byte_fallback=True)
    t = Tokenizer(models.Unigram(pieces, 2, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<lonely> $A </s>", special_tokens=[("<lonely>", t.get_vocab_size()), ("</s>", 1)])
    t.add_special_tokens([AddedToken("<lonely>", single_word=True, normalized=False), AddedToken("<pad>", normalized=False), AddedToken("</s>", normalized=False)])
    t.add_tokens([AddedToken("<wide>", lstrip=True, rstrip=True, normalized=False), AddedToken("<special>", normalized=True)])
    t.save(str(FOLDER / "converted.json"))
    lines = []
    for s in STRINGS:
        ids = t.encode(s).ids
        lines.append({"text": s, "ids": ids, "plain": t.encode(s, add_special_tokens=False).ids, "decoded": t.decode(ids), "whole": t.decode(ids, skip_special_tokens=False)})
    return lines


def kind(name):
    """A published kind of tokenizer, trained on TEXT."""
    peer = module("tests", "parity", "tokenizer", "peer.py")
    t, trainer = getattr(peer, name)(KINDS[name])
    t.train_from_iterator(TEXT.splitlines(), trainer)
    t.add_special_tokens([AddedToken(n, normalized=False) for n in ("<s>", "</s>")])
    t.add_tokens([AddedToken("<wide>", lstrip=True, rstrip=True, normalized=False), AddedToken("<special>", normalized=True)])
    a, b = (("<s>", t.token_to_id("<s>")), ("</s>", t.token_to_id("</s>")))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A </s> $B:1", special_tokens=[a, b])
    t.save(str(FOLDER / f"{name}.json"))
    lines = []
    for s in STRINGS:
        ids = t.encode(s).ids
        lines.append({"text": s, "ids": ids, "plain": t.encode(s, add_special_tokens=False).ids, "decoded": t.decode(ids), "whole": t.decode(ids, skip_special_tokens=False)})
    return lines


# The sizes of the vocabularies. The ones of bytes have 256 tokens more.
KINDS = {"llama3": 300, "llama2": 20, "mistral": 20, "clip": 230, "bert": 200, "words": 100}


def main():
    FOLDER.mkdir(exist_ok=True)
    makes = {"t5": t5, "converted": converted} | {name: functools.partial(kind, name) for name in KINDS}
    for name in sys.argv[1:] or makes:
        text = ",\n".join(json.dumps(line) for line in makes[name]())
        (FOLDER / f"{name}_want.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
