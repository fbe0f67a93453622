package tokenizer

import (
	"bytes"
	"fmt"
	"strings"
)

// bpe makes the model of a file with byte pairs.
func (m *modelField) bpe(v vocabulary, field string, pre *preTokenizers) (model, error) {
	if m.Dropout != nil && *m.Dropout != 0 {
		return nil, fmt.Errorf("%s.dropout: it is %g, and tokens by chance are not known; set it to null: %w",
			field, *m.Dropout, ErrUnsupported)
	}
	b := &bpe{vocabulary: v, unknown: -1, fuseUnknown: m.FuseUnknown, byteFallback: m.ByteFallback,
		ignoreMerges: m.IgnoreMerges, cache: newCache()}
	if m.Prefix != nil {
		b.prefix = *m.Prefix
	}
	if m.Suffix != nil {
		b.suffix = *m.Suffix
	}
	merges, err := m.pairs(field + ".merges")
	if err != nil {
		return nil, err
	}
	b.merges = newTable(len(merges))
	for rank, pair := range merges {
		if err := b.addMerge(rank, pair); err != nil {
			return nil, bad(fmt.Sprintf("%s.merges[%d]", field, rank), "%v", err)
		}
	}
	if pre.byteLevel && b.readBytes() {
		return b, nil // the pieces stay bytes
	}
	pre.write()
	if m.UnknownToken != nil {
		b.unknown, err = v.unknown(m.UnknownToken, field+".unk_token")
	}
	return b, err
}

// pairs returns the merges, which are texts such as "a b", or pairs.
func (m *modelField) pairs(field string) ([][2]string, error) {
	if inside := bytes.TrimLeft(bytes.TrimPrefix(m.Merges, []byte("[")), " \t\r\n"); bytes.HasPrefix(inside, []byte(`"`)) {
		var lines []string
		if err := unmarshal(m.Merges, field, &lines); err != nil {
			return nil, err
		}
		var pairs [][2]string
		for i, line := range lines {
			if strings.HasPrefix(line, "#version") {
				continue
			}
			left, right, ok := strings.Cut(line, " ")
			if !ok || strings.Contains(right, " ") {
				return nil, bad(fmt.Sprintf("%s[%d]", field, i), "%.80q is not two tokens", line)
			}
			pairs = append(pairs, [2]string{left, right})
		}
		return pairs, nil
	}
	var all [][]string
	if err := unmarshal(m.Merges, field, &all); err != nil {
		return nil, err
	}
	pairs := make([][2]string, len(all))
	for i, pair := range all {
		if len(pair) != 2 {
			return nil, bad(fmt.Sprintf("%s[%d]", field, i), "it has %d tokens, want 2", len(pair))
		}
		pairs[i] = [2]string(pair)
	}
	return pairs, nil
}

func (b *bpe) addMerge(rank int, pair [2]string) error {
	left, right := b.id(pair[0]), b.id(pair[1])
	if left < 0 || right < 0 || len(pair[1]) < len(b.prefix) {
		return fmt.Errorf("%.80q and %.80q are not both in the vocabulary", pair[0], pair[1])
	}
	name := pair[0] + pair[1][len(b.prefix):]
	id := b.id(name)
	if id < 0 {
		return fmt.Errorf("%.80q, of %.80q and %.80q, is not in the vocabulary", name, pair[0], pair[1])
	}
	b.merges.set(pairKey(left, right), uint64(rank)<<32|uint64(id))
	return nil
}
