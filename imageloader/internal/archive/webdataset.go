package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/internal/pythonjson"
)

// Note [WebDataset]
//
// In a shard of a WebDataset, a sample is several members one after another: 000001.jpg,
// 000001.cls, 000001.json. The key of a member is its name up to the first dot after the last
// slash. The text after this dot is the kind of the member. All members of a sample have the same
// key.
//
// The loader takes one image and one label of a sample. If a sample has several images, the
// loader takes the first. The label is the text of the .cls. If there is no .cls, the label is a
// field of the .json. A text of digits is the label itself. Any other text is the name of a
// class.
//
// The label may come before or after the image. So the loader reads a sample completely, and
// returns the members of the sample when the next sample begins. Members of one key that lie apart
// are two samples, as in Python's webdataset. An image whose label lies apart has no label, and is
// an error. See Note [Doubtful labels] for archives in which no image has a label beside it.

// LabelSource is imageloader.LabelSource.
type LabelSource int

// The values of imageloader.LabelSource.
const (
	LabelsFound LabelSource = iota
	LabelsFromDirectories
	LabelsFromMembers
)

const (
	defaultLabelField = "label"

	maxLabel      = 256       // most bytes of a label
	maxLabelFile  = 4 << 10   // most bytes of a .cls
	maxFieldsFile = 1 << 20   // most bytes of a .json
	maxNumber     = 1_000_000 // most classes, if labels are numbers
)

// keyOf splits a name into the key of its sample and the kind of the member. The kind is in lower
// case. Both results are empty for a name without a key.
func keyOf(name string) (key, what string) {
	name = strings.TrimPrefix(name, "./")
	base := path.Base(name)
	dot := strings.IndexByte(base, '.')
	if dot <= 0 {
		return "", ""
	}
	return name[:len(name)-len(base)+dot], strings.ToLower(base[dot+1:])
}

func isImageOf(what string) bool { return imageExtensions["."+what] }

// sampleStream goes through a shard of a WebDataset. It returns the members of the shard in their
// order, and gives each image its label.
type sampleStream struct {
	Stream
	reading
	shard *Shard
	known map[string]string // each label once, so that equal labels share memory

	ready []Entry // members of a complete sample that are still to be returned
	image []byte  // the content of the sample's image
	first *Entry  // first member of the next sample, with unread content
	err   error   // the error that follows the members in `ready`
}

// sampleMembers is a sample that is being collected.
type sampleMembers struct {
	key     string
	entries []Entry
	image   int    // index of the image in entries, -1 without an image
	label   string // "" while there is no label
	from    string // the kind of the member that the label is from, "cls" or "json"
	fault   string // the fault of the label
}

func (s *sampleStream) Next() (Entry, error) {
	for len(s.ready) == 0 {
		s.memory.Give(s.image) // nobody asked for the image
		s.image = nil
		if s.err != nil {
			return Entry{}, s.err
		}
		s.ready = s.collect()
	}
	e := s.ready[0]
	s.ready = s.ready[1:]
	return e, nil
}

// content returns the content of a sample's image. It is called only for an image.
func (s *sampleStream) Content() ([]byte, error) {
	data := s.image
	s.image = nil
	return data, nil
}

func (s *sampleStream) Close() {
	s.memory.Give(s.image)
	s.image = nil
	s.Stream.Close()
}

// mostEntries bounds the members of a sample.
const mostEntries = 10_000

// collect reads the next sample. An error may come in the middle of a sample. The sample is then
// returned only if it has its image and label, or if the error is io.EOF.
func (s *sampleStream) collect() []Entry {
	all := sampleMembers{image: -1}
	for {
		e, err := s.advance()
		if err == nil {
			key, what := keyOf(e.Name)
			if e.kind != regularFile && (e.kind != sparseFile || !isImageOf(what)) {
				key = ""
			}
			if key == "" && all.key == "" {
				return []Entry{e} // between two samples
			}
			if key != "" && all.key != "" && key != all.key || len(all.entries) >= mostEntries {
				s.first = &e
				return all.finish()
			}
			// A member without a key, such as a directory or a file of macOS, does not end a
			// sample.
			all.entries = append(all.entries, e)
			if key != "" {
				all.key = key
				err = s.take(&all, e, what)
			}
		}
		if err != nil {
			if s.err = err; err != io.EOF && (all.image < 0 || all.label == "") {
				return nil
			}
			return all.finish()
		}
	}
}

// advance returns the next member of the shard.
func (s *sampleStream) advance() (Entry, error) {
	if e := s.first; e != nil {
		s.first = nil
		return *e, nil
	}
	return s.Stream.Next()
}

// take adds the content of e to a sample, if the sample needs it. e is the current member of the
// stream of the shard.
func (s *sampleStream) take(all *sampleMembers, e Entry, what string) error {
	switch {
	case isImageOf(what) && all.image < 0:
		all.image = len(all.entries) - 1
		if e.kind != sparseFile && s.contents && s.shard.tooLarge(e) == nil {
			data, fault, err := s.read()
			if err != nil {
				all.image = -1
				return err
			}
			s.image, all.entries[all.image].fault = data, fault
		}
	case what == "cls", what == "json" && all.from != "cls":
		most := int64(maxFieldsFile)
		if what == "cls" {
			most = maxLabelFile
		}
		text, fault, err := s.text(e, most)
		if err != nil {
			return err
		}
		if fault != "" {
			fault = fmt.Sprintf("its label, in %s: %s", Printable(path.Base(e.Name)), fault)
		} else if what == "cls" && text == "" {
			fault = fmt.Sprintf("its label, in %s, is empty or larger than %d bytes", Printable(path.Base(e.Name)), maxLabelFile)
		}
		found := true
		if what == "json" {
			text, found = fieldOf(text, s.shard.LabelField)
		}
		label := ""
		if fault == "" && found {
			label, fault = s.parse(text)
		}
		switch {
		case fault == "" && !found:
		case what != all.from:
			all.label, all.fault, all.from = label, fault, what
		case all.fault == "" && fault == "" && label != all.label:
			all.label, all.fault = "", fmt.Sprintf("its sample has two labels, %s and %s; give each sample a key of its own", Printable(all.label), Printable(label))
		}
	}
	return nil
}

// read returns the content of the current member of the stream. An error of this member alone, as
// in a folder, is a fault of its sample.
func (s *sampleStream) read() (data []byte, fault string, err error) {
	data, err = s.Stream.Content()
	if bad := (*Error)(nil); errors.As(err, &bad) && bad.Kind == ErrBadMember {
		return nil, bad.Reason, nil
	}
	return data, "", err
}

// text returns the content of e, the current member of the stream, without a byte-order mark and
// white space around it. For a content larger than `most` bytes it returns "".
func (s *sampleStream) text(e Entry, most int64) (text, fault string, err error) {
	if e.size > most {
		return "", "", nil
	}
	data, fault, err := s.read()
	if int64(len(data)) <= most {
		text = string(data)
	}
	s.memory.Give(data)
	return text, fault, err
}

// decimal matches a number that is no whole number, and infinities. A label of another form is a
// name, such as 12_0 or 0x10.
var decimal = regexp.MustCompile(`^(?i:[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-](inf|infinity|nan))$`)

// trimmed removes a byte-order mark, and white space at both ends of a text.
func trimmed(text string) string { return strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")) }

// parse returns the label that `text` holds: a number without leading zeros, or a name. For an
// invalid label it returns the fault.
func (s *sampleStream) parse(text string) (label, fault string) {
	text = trimmed(text)
	if label, ok := s.known[text]; ok {
		return label, ""
	}
	switch n, err := strconv.ParseInt(text, 10, 64); {
	case err == nil && n >= 0 && n < maxNumber:
		text = strconv.FormatInt(n, 10)
	case err == nil, errors.Is(err, strconv.ErrRange), decimal.MatchString(text):
		return "", fmt.Sprintf("its label is %.40s; it must be 0 to %d, or a name", text, maxNumber-1)
	case text == "", len(text) > maxLabel, !utf8.ValidString(text), strings.ContainsFunc(text, isUnprintable):
		return "", fmt.Sprintf("its label is %.40q; it must be a number or a name, in UTF-8, on one line of at most %d bytes", text, maxLabel)
	}
	if label, ok := s.known[text]; ok {
		return label, ""
	}
	s.known[text] = text
	return text, ""
}

// isUnprintable reports whether a character cannot be part of a name. U+FFFD stands for bytes that
// were lost.
func isUnprintable(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError || r == '\ufeff' }

// fieldOf returns the value of a field of a JSON object, and whether it is a number or a string. Of
// another value than null it returns the JSON.
func fieldOf(text, name string) (value string, scalar bool) {
	var fields map[string]json.RawMessage
	if text = trimmed(text); json.Unmarshal([]byte(text), &fields) != nil {
		valid := pythonjson.Replace([]byte(text), func([]byte) []byte { return []byte("null") })
		if json.Unmarshal(valid, &fields) != nil {
			return "", false
		}
	}
	field := json.NewDecoder(bytes.NewReader(fields[name]))
	field.UseNumber()
	var content any
	if field.Decode(&content) != nil {
		return "", false
	}
	switch v := content.(type) {
	case nil:
		return "", false
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	}
	return string(fields[name]), false
}

// finish gives the image of the sample its label.
func (all *sampleMembers) finish() []Entry {
	if all.image >= 0 {
		e := &all.entries[all.image]
		if e.label = all.label; e.fault == "" {
			e.fault = all.fault
		}
		if e.label == "" && e.fault == "" {
			e.fault = "no label: its sample has no .cls, and no .json with the field of Options.Labels.Field; the members of a sample must follow one another, as tar --sort=name packs them; for labels from directories set Options.Labels.From"
		}
	}
	return all.entries
}

// isNumber reports whether a label is the number of a class, and returns the number.
func isNumber(label string) (n int, ok bool) {
	n, err := strconv.Atoi(label)
	return n, err == nil && n >= 0 && n < maxNumber
}
