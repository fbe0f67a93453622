package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"unicode/utf8"
)

// maxHeader is the number of bytes of the longest header that readers of the format accept.
const maxHeader = 100_000_000

const metadataKey = "__metadata__"

// Info describes a tensor of a file.
type Info struct {
	Name  string
	DType string  // "F32", "BF16", "I64", "BOOL", …
	Shape []int64 // empty for a scalar
	Bytes int64   // number of bytes of the elements

	begin int64 // where the elements begin, counted from the end of the header
}

// encodeHeader returns the JSON of a header. It pads the JSON to a multiple of 8 bytes.
func encodeHeader(tensors []Info, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	text := func(s string) {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(s)         // encoding a string into memory cannot fail
		b.Truncate(b.Len() - 1) // Encode ends with a newline
	}
	b.WriteByte('{')
	if len(metadata) > 0 {
		text(metadataKey)
		b.WriteString(":{")
		keys := make([]string, 0, len(metadata))
		for k := range metadata {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for i, k := range keys {
			if !utf8.ValidString(k) || !utf8.ValidString(metadata[k]) {
				return nil, fmt.Errorf("metadata %q is not UTF-8: a header holds text alone", k)
			}
			if i > 0 {
				b.WriteByte(',')
			}
			text(k)
			b.WriteByte(':')
			text(metadata[k])
		}
		b.WriteByte('}')
	}
	for i, t := range tensors {
		if i > 0 || len(metadata) > 0 {
			b.WriteByte(',')
		}
		text(t.Name)
		shape := "["
		for k, n := range t.Shape {
			if k > 0 {
				shape += ","
			}
			shape += strconv.FormatInt(n, 10)
		}
		fmt.Fprintf(&b, `:{"dtype":"%s","shape":%s],"data_offsets":[%d,%d]}`, t.DType, shape, t.begin, t.begin+t.Bytes)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, fmt.Errorf("the header has %d bytes, and readers accept %d: write fewer tensors or shorter metadata", b.Len(), maxHeader)
	}
	return b.Bytes(), nil
}

// decodeHeader is the inverse of encodeHeader. It returns the tensors in the order of their
// bytes. The file has `size` bytes after the header. The tensors must cover these bytes without
// gap or overlap. Otherwise decodeHeader fails.
func decodeHeader(header []byte, size int64) (tensors []Info, metadata map[string]string, err error) {
	if !utf8.Valid(header) {
		return nil, nil, errors.New("the header is not UTF-8")
	}
	members, err := decodeObject(header)
	if err == nil {
		err = unique(members)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the header is %w", err)
	}
	for _, m := range members {
		if m.key == metadataKey {
			if metadata, err = decodeMetadata(m.value); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", metadataKey, err)
			}
			continue
		}
		t, err := decodeTensor(m.value)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %s: %w", m.key, err)
		}
		t.Name = m.key
		tensors = append(tensors, t)
	}
	slices.SortStableFunc(tensors, func(a, b Info) int {
		if a.begin != b.begin {
			return compare(a.begin, b.begin)
		}
		return compare(a.Bytes, b.Bytes)
	})
	var end int64
	for _, t := range tensors {
		switch {
		case t.begin < end:
			return nil, nil, fmt.Errorf("tensor %s begins at byte %d, inside the tensor before it, which ends at %d", t.Name, t.begin, end)
		case t.begin > end:
			return nil, nil, fmt.Errorf("tensor %s begins at byte %d, and nothing says what lies from %d on", t.Name, t.begin, end)
		case t.Bytes > size-t.begin:
			return nil, nil, fmt.Errorf("tensor %s has %d bytes, and the file ends after %d of them: it is cut short", t.Name, t.Bytes, size-t.begin)
		}
		end = t.begin + t.Bytes
	}
	if end < size {
		return nil, nil, fmt.Errorf("%d bytes behind the last tensor belong to none", size-end)
	}
	return tensors, metadata, nil
}

func compare(a, b int64) int {
	if a < b {
		return -1
	} else if a > b {
		return 1
	}
	return 0
}

type member struct {
	key   string
	value json.RawMessage
}

// decodeObject splits a JSON object into its members.
func decodeObject(data []byte) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("no JSON object")
	}
	var members []member
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("damaged JSON: %w", err)
		}
		m := member{key: t.(string)} // the decoder accepts only strings as keys
		if err := d.Decode(&m.value); err != nil {
			return nil, fmt.Errorf("damaged JSON: %w", err)
		}
		members = append(members, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("damaged JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("followed by something else than spaces")
	}
	return members, nil
}

// unique fails if a key appears twice.
func unique(members []member) error {
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		if seen[m.key] {
			return fmt.Errorf("ambiguous: %q is there twice", m.key)
		}
		seen[m.key] = true
	}
	return nil
}

// decodeMetadata reads the map of strings. Python's package reads null as no map.
func decodeMetadata(data []byte) (map[string]string, error) {
	if string(data) == "null" {
		return nil, nil
	}
	members, err := decodeObject(data)
	if err == nil {
		err = unique(members)
	}
	if err != nil {
		return nil, err
	}
	metadata := make(map[string]string, len(members))
	for _, m := range members {
		v, err := decodeString(m.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
		metadata[m.key] = v
	}
	return metadata, nil
}

// decodeTensor reads an entry. As Python's package it passes over fields that it does not know.
func decodeTensor(data []byte) (Info, error) {
	members, err := decodeObject(data)
	if err != nil {
		return Info{}, err
	}
	known := func(m member) bool { return m.key == "dtype" || m.key == "shape" || m.key == "data_offsets" }
	members = slices.DeleteFunc(members, func(m member) bool { return !known(m) })
	if err := unique(members); err != nil {
		return Info{}, err
	}
	var t Info
	var offsets []int64
	var has [3]bool
	for _, m := range members {
		switch m.key {
		case "dtype":
			t.DType, err = decodeString(m.value)
			has[0] = true
		case "shape":
			t.Shape, err = decodeInts(m.value)
			has[1] = true
		case "data_offsets":
			offsets, err = decodeInts(m.value)
			has[2] = true
		}
		if err != nil {
			return Info{}, fmt.Errorf("%s: %w", m.key, err)
		}
	}
	if has != [3]bool{true, true, true} {
		return Info{}, errors.New("dtype, shape or data_offsets is missing")
	}
	if t.Bytes, err = byteSize(t.DType, t.Shape); err != nil {
		return Info{}, err
	}
	if len(offsets) != 2 || offsets[0] < 0 || offsets[1] < offsets[0] {
		return Info{}, fmt.Errorf("data_offsets %v are no range", offsets)
	}
	if n := offsets[1] - offsets[0]; n != t.Bytes {
		return Info{}, fmt.Errorf("data_offsets %v span %d bytes, %s of shape %v has %d", offsets, n, t.DType, t.Shape, t.Bytes)
	}
	t.begin = offsets[0]
	return t, nil
}

func decodeString(data []byte) (string, error) {
	if data[0] != '"' {
		return "", fmt.Errorf("%.20s is no text", data)
	}
	var s string
	err := json.Unmarshal(data, &s)
	return s, err
}

// decodeInts reads a list of whole numbers. It does not use encoding/json for the numbers,
// because encoding/json reads null as 0.
func decodeInts(data []byte) ([]int64, error) {
	if data[0] != '[' {
		return nil, fmt.Errorf("%.20s is no list", data)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	ints := make([]int64, len(list))
	for i, text := range list {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.40s is no whole number below 2^63", text)
		}
		ints[i] = n
	}
	return ints, nil
}
