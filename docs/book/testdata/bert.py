"""Makes bert-vocab.txt, and bert.txt with the ids of transformers' BertTokenizerFast for the texts below.

Run it in this folder. It needs transformers. Each line of bert.txt is a JSON list: the text, then its ids.
"""

import json
import random
import unicodedata

import transformers

texts = """The naïve café owner said: "Où est ma résumé?"
Gophers run, go!
24 gopher-runs, go Go  GO s
Zoë ate crème brûlée in Málaga.
Ångström and Ørsted met in Århus.
Der Fluß heißt Weser; GROẞE STRAẞE.
El niño comió piñas en España, ¿verdad?
¡Hola! ¿Qué tal?
Dvořák, Janáček & Smetana
Łódź, Kraków and Gdańsk
İstanbul'da ılık bir gün
Αθήνα είναι η πρωτεύουσα. ΣΊΣΥΦΟΣ
Москва и ёлка, Йод
我爱北京天安门。
東京タワーは高いです
漢字とかなとカナ, half ｶﾅ
서울은 한국의 수도입니다.
xin chào Việt Nam, phở ngon
नमस्ते दुनिया
สวัสดีชาวโลก
مرحبا بالعالم، كيف الحال؟
שָׁלוֹם עולם
e\u0301 is e and an accent; so is é
ﬁne ﬂow, ½ of №5, x² + y²
𝒜 𝔅 and Ａ Ｂ full width
it's the dogs' bone, isn't it?
don’t “quote” me… — ever – again
$5.00 + 10% = 5^2 <ok> [a] {b} `c` ~d | e_f \\ g
user@example.com #tag http://a.b/c?d=e&f=g
C++ and C# and F#
€5, £6, ¥7, ₹8 and 9¢
5 < 6 > 4 = 4
a+b=c; a×b÷c≠d ± ∞ ∑ √
no\u00a0break, thin\u2009space, ideographic\u3000space
zero\u200bwidth, joiner\u200dhere, soft\u00adhyphen, mark\ufeff
bell\u0007 null\u0000 escape\u001b next\u0085line form\u000cfeed vertical\u000btab
line\u2028separator\u2029paragraph
replacement \ufffd character
private \ue000 use
I ❤ NY 😀 👨\u200d👩\u200d👧 🏳️\u200d🌈
flags 🇩🇪🇫🇷
→ arrows ← and ☃ snow
«guillemets» ‹single› „low“
a·b•c‧d
„Straße“ – Maße
ΆΈΉΊΌΎΏ
ǅ ǆ Ǆ ĳ œ æ ß ſ
ÀÉÎÕÜ àéîõü ÿ Ÿ
K Å Ω as signs: \u212a \u212b \u2126
豈更車 compatibility \uf900\ufa0e\ufa10
㐀䶵 extension 𠀀 𪛖 𫜴 𬺡
々 and 〇 and ー and ・
；：，。！？（）【】
runfrom runner running unrunnable
xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
éééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé
Nguyễn Thị Ánh
Hafþór Júlíus Björnsson
ʻOkina and Hawaiʻi
O’Brien-Smith (Jr.)
1,000.50 and 1.000,50
2024-11-28T04:00:00Z
ⅠⅡⅢ ⅳ
①② ⓐⓑ
ﷺ ﻻ
ქართული ᲥᲐᲠᲗᲣᲚᲘ
հայերեն ՀԱՅԵՐԵՆ
Cherokee Ꭰ ꭰ
unknown ☠☠ pieces ☠a""".split("\n")
texts.append("tab\there\nnew line\r\nand return")

# The vocabulary has each letter of the texts as they are, in lower case and without accents, but for the unknown ☠.
letters = sorted({c for t in texts for s in (t, t.lower(), unicodedata.normalize("NFD", t.lower())) for c in s if c.isprintable() and c not in " ☠"})
words = "the naive cafe owner said ou est ma resume go ##pher ##s run ##run ##ner ##ning gopher dogs it isn don quote nino espana strasse straße москва елка xx ##xx ee ##ee".split()
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + sorted({*letters, *("##" + c for c in letters), *words})
open("bert-vocab.txt", "w", encoding="utf-8").write("\n".join(vocabulary) + "\n")

random.seed(1)
pool = letters + list(" .,-'\t\u0301\u0308\u200b\u00a0") * 8
texts += ["".join(random.choices(pool, k=40)) for _ in range(40)]
tokenizer = transformers.BertTokenizerFast("bert-vocab.txt")
with open("bert.txt", "w", encoding="utf-8") as out:
    for text in texts:
        out.write(json.dumps([text, *tokenizer(text)["input_ids"]]) + "\n")
print(len(texts), "texts,", len(vocabulary), "pieces")
