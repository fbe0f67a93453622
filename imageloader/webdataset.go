package imageloader

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
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
// returns the members of the sample when the next sample begins.

// Labels says where the label of an image is from.
type Labels int

const (
	// LabelsFound looks at the first image of the first shard. If the image has a .cls of its key, or
	// a .json of its key with Options.LabelField, labels are from members. Otherwise labels are from
	// directories.
	LabelsFound Labels = iota
	// LabelsFromDirectories takes the name of the directory that an image lies in.
	LabelsFromDirectories
	// LabelsFromMembers takes the label from the .cls or .json that belongs to an image, as in the
	// shards of a WebDataset. The images of a directory always get their labels from directories.
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
	stream
	reading
	shard *shard
	known map[string]string // each label once, so that equal labels share memory

	ready []entry // members of a complete sample that are still to be returned
	image []byte  // the content of the sample's image
	first *entry  // first member of the next sample, with unread content
	err   error   // the error that follows the members in `ready`
}

// sampleMembers is a sample that is being collected.
type sampleMembers struct {
	key     string
	entries []entry
	image   int    // index of the image in entries, -1 without an image
	label   string // "" while there is no label
	exact   bool   // the label is from a .cls
	fault   string // the fault of the label
}

func (s *sampleStream) next() (entry, error) {
	for len(s.ready) == 0 {
		s.memory.Give(s.image) // nobody asked for the image
		s.image = nil
		if s.err != nil {
			return entry{}, s.err
		}
		s.ready = s.collect()
	}
	e := s.ready[0]
	s.ready = s.ready[1:]
	return e, nil
}

// content returns the content of a sample's image. It is called only for an image.
func (s *sampleStream) content() ([]byte, error) {
	data := s.image
	s.image = nil
	return data, nil
}

func (s *sampleStream) close() {
	s.memory.Give(s.image)
	s.image = nil
	s.stream.close()
}

// mostEntries bounds the members of a sample.
const mostEntries = 10_000

// collect reads the next sample. An error may come in the middle of a sample. The sample is then
// returned only if it has its image and label, or if the error is io.EOF.
func (s *sampleStream) collect() []entry {
	all := sampleMembers{image: -1}
	for {
		e, err := s.advance()
		if err == nil {
			key, what := keyOf(e.name)
			if e.kind != regularFile && (e.kind != sparseFile || !isImageOf(what)) {
				key = ""
			}
			if key == "" && all.key == "" {
				return []entry{e} // between two samples
			}
			if key != "" && all.key != "" && key != all.key || len(all.entries) >= mostEntries {
				s.first = &e
				return all.finish()
			}
			// A member without a key, such as a directory or a file of macOS, does not end a sample.
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
func (s *sampleStream) advance() (entry, error) {
	if e := s.first; e != nil {
		s.first = nil
		return *e, nil
	}
	return s.stream.next()
}

// take adds the content of e to a sample, if the sample needs it. e is the current member of the
// shard's stream.
func (s *sampleStream) take(all *sampleMembers, e entry, what string) error {
	switch {
	case isImageOf(what) && all.image < 0:
		all.image = len(all.entries) - 1
		if e.kind != sparseFile && s.contents && s.shard.tooLarge(e) == nil {
			data, err := s.stream.content()
			if err != nil {
				all.image = -1
				return err
			}
			s.image = data
		}
	case what == "cls" && !all.exact:
		text, err := s.text(e, maxLabelFile)
		if err != nil {
			return err
		}
		all.exact = true
		all.label, all.fault = s.parse(strings.TrimSpace(text))
		if text == "" {
			all.fault = fmt.Sprintf("its label, in %s, is empty or larger than %d bytes", printable(path.Base(e.name)), maxLabelFile)
		}
	case what == "json" && !all.exact:
		text, err := s.text(e, maxFieldsFile)
		if err != nil {
			return err
		}
		if label, found := fieldOf(text, s.shard.labelField); found {
			all.label, all.fault = s.parse(label)
		}
	}
	return nil
}

// text returns the content of e, the current member of the shard's stream. For a content larger
// than `most` bytes it returns "".
func (s *sampleStream) text(e entry, most int64) (string, error) {
	if e.size > most {
		return "", nil
	}
	data, err := s.stream.content()
	text := string(data)
	s.memory.Give(data)
	return text, err
}

// parse returns the label that `text` holds: a number without leading zeros, or a name. For an
// invalid label it returns the fault.
func (s *sampleStream) parse(text string) (label, fault string) {
	switch n, err := strconv.ParseInt(text, 10, 64); {
	case err == nil && n >= 0 && n < maxNumber:
		text = strconv.FormatInt(n, 10)
	case err == nil, errors.Is(err, strconv.ErrRange), isFraction(text):
		return "", fmt.Sprintf("its label is %.40s; it must be 0 to %d, or a name", text, maxNumber-1)
	case text == "", len(text) > maxLabel, !utf8.ValidString(text), strings.ContainsFunc(text, unicode.IsControl):
		return "", fmt.Sprintf("its label is %.40q; it must be a number or a name, on one line of at most %d bytes", text, maxLabel)
	}
	if label, ok := s.known[text]; ok {
		return label, ""
	}
	s.known[text] = text
	return text, ""
}

func isFraction(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil && strings.ContainsAny(text[:1], "+-.0123456789")
}

// fieldOf returns the value of a field of a JSON object, if this value is a number or a string.
func fieldOf(text, name string) (value string, found bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &fields) != nil {
		return "", false
	}
	field := json.NewDecoder(bytes.NewReader(fields[name]))
	field.UseNumber()
	var content any
	if field.Decode(&content) != nil {
		return "", false
	}
	switch v := content.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	}
	return "", false
}

// finish gives the image of the sample its label.
func (all *sampleMembers) finish() []entry {
	if all.image >= 0 {
		e := &all.entries[all.image]
		if e.label, e.fault = all.label, all.fault; e.label == "" && e.fault == "" {
			e.fault = "no label: its sample has no .cls, and no .json with the field of Options.LabelField"
		}
	}
	return all.entries
}

// isNumber reports whether a label is the number of a class, and returns the number.
func isNumber(label string) (n int, ok bool) {
	n, err := strconv.Atoi(label)
	return n, err == nil && n >= 0 && n < maxNumber
}

// findLabels returns the source of an archive's labels. For LabelsFound it reads the beginning of
// the first shard.
func (a *archive) findLabels(o Options) Labels {
	first := a.shards[0]
	if o.Labels != LabelsFound || first.format == directory {
		return max(o.Labels, LabelsFromDirectories)
	}
	const most = 64 // MiB of a .tgz in which the first image must lie
	var content io.Reader = io.NewSectionReader(first.file, 0, first.info.Size())
	if first.format == gzipTar {
		z, err := gzip.NewReader(content)
		if err != nil {
			return LabelsFromDirectories // the pass through the shard reports the error
		}
		content = io.LimitReader(z, most<<20)
	}
	members, key := tar.NewReader(content), ""
	image, label := false, false
	const many = 10_000 // members in which the first image must lie
	for range many {
		h, err := members.Next()
		if err != nil {
			break
		}
		k, what := keyOf(h.Name)
		if kindOf(h) != regularFile || k == "" {
			continue
		}
		if k != key && image {
			break
		}
		if k != key {
			label = false
		}
		key = k
		switch {
		case what == "cls":
			label = true
		case what == "json" && h.Size <= maxFieldsFile:
			text, err := io.ReadAll(members)
			_, found := fieldOf(string(text), o.LabelField)
			label = label || err == nil && found
		case isImageOf(what):
			image = true
		}
	}
	if image && label {
		return LabelsFromMembers
	}
	return LabelsFromDirectories
}
