package main

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
)

// wordPattern cuts texts into words, within which tokens lie. A word in capitals and small letters
// is cut before a capital, because most names of programs are made so.
const wordPattern = ` ?\p{Lu}?\p{Ll}+| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+`

type pair [2]int

// word is a word of the texts, as the tokens that it consists of so far.
type word struct {
	tokens []int
	count  int
}

// cutWords counts the words of texts. Their tokens are bytes.
func cutWords(texts []string) (words []word) {
	counts := map[string]int{}
	cut := regexp.MustCompile(wordPattern)
	for _, text := range texts {
		for _, w := range cut.FindAllString(text, -1) {
			counts[w]++
		}
	}
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		w := word{count: counts[text]}
		for _, b := range []byte(text) {
			w.tokens = append(w.tokens, int(b))
		}
		words = append(words, w)
	}
	return words
}

// merge replaces each occurrence of a pair by one token.
func (w *word) merge(p pair, by int) {
	kept := w.tokens[:0]
	for i := 0; i < len(w.tokens); i++ {
		t := w.tokens[i]
		if i+1 < len(w.tokens) && p == (pair{t, w.tokens[i+1]}) {
			t = by
			i++
		}
		kept = append(kept, t)
	}
	w.tokens = kept
}

// learnTokens is byte-pair encoding. Tokens 0 to 255 are the bytes. Each further token is the pair
// of tokens that is most frequent when it is made. It returns the bytes of each token, and the
// pairs in the order in which they were merged.
func learnTokens(texts []string, size int) (tokens []string, merges []pair) {
	ids := map[string]int{}
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
		ids[tokens[b]] = b
	}
	words := cutWords(texts)
	counts, where := map[pair]int{}, map[pair]map[int]bool{} // how often a pair occurs, and in which words
	add := func(i, sign int) {
		all := words[i].tokens
		for k := range len(all) - 1 {
			p := pair{all[k], all[k+1]}
			if where[p] == nil {
				where[p] = map[int]bool{}
			}
			counts[p] += sign * words[i].count
			where[p][i] = true
		}
	}
	for i := range words {
		add(i, 1)
	}
	for len(tokens) < size {
		var best pair
		for p, n := range counts {
			if n > counts[best] || n == counts[best] && slices.Compare(p[:], best[:]) < 0 {
				best = p
			}
		}
		if counts[best] < 2 {
			break
		}
		text := tokens[best[0]] + tokens[best[1]]
		if _, made := ids[text]; !made {
			ids[text] = len(tokens)
			tokens = append(tokens, text)
		}
		merges = append(merges, best)
		for i := range where[best] {
			add(i, -1)
			words[i].merge(best, ids[text])
			add(i, 1)
		}
		delete(counts, best)
		delete(where, best)
	}
	return tokens, merges
}

// letters returns the letter that stands for each byte in a tokenizer.json. Bytes that are no
// visible letters of Latin 1 have those from U+0100 on.
func letters() (all [256]string) {
	next := rune(256)
	for b := range all {
		visible := b >= '!' && b <= '~' || b >= 0xA1 && b != 0xAD
		if all[b] = string(rune(b)); !visible {
			all[b] = string(next)
			next++
		}
	}
	return all
}

// writeTokenizer learns tokens from texts, and writes a tokenizer.json as Hugging Face's tokenizers
// writes it. The special tokens are the last ones. It returns the number of tokens.
func writeTokenizer(path string, texts []string, size int, special []string) (int, error) {
	type object = map[string]any
	tokens, merges := learnTokens(texts, size-len(special))
	alphabet, vocab := letters(), object{}
	name := func(id int) (name string) {
		for _, b := range []byte(tokens[id]) {
			name += alphabet[b]
		}
		return name
	}
	for id := range tokens {
		vocab[name(id)] = id
	}
	var lines []string
	for _, m := range merges {
		lines = append(lines, name(m[0])+" "+name(m[1]))
	}
	var added []object
	for i, name := range special {
		added = append(added, object{"id": len(tokens) + i, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	bytes := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	data, err := json.MarshalIndent(object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil, "post_processor": nil, "decoder": bytes,
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			{"type": "Split", "pattern": object{"Regex": wordPattern}, "behavior": "Isolated", "invert": false}, bytes,
		}},
		"model": object{"type": "BPE", "vocab": vocab, "merges": lines, "dropout": nil, "unk_token": nil, "fuse_unk": false, "byte_fallback": false,
			"continuing_subword_prefix": nil, "end_of_word_suffix": nil, "ignore_merges": false},
	}, "", " ")
	if err != nil {
		return 0, err
	}
	return len(tokens) + len(special), os.WriteFile(path, data, 0o644)
}
