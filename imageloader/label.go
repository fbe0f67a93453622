package imageloader

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// vocabulary is the names of the classes, in the order of their labels.
type vocabulary struct {
	names  []string
	labels map[string]int32
	fixed  bool   // no other class is legal: given by the caller, or found by a whole pass
	source string // where the names are from, for messages: "Options.Classes", or the name of a file
}

// givenClasses returns the vocabulary that the options give, or an empty one to collect the archive's classes in.
func givenClasses(o Options) (*vocabulary, error) {
	v := &vocabulary{names: o.Classes, fixed: true, source: "Options.Classes"}
	if o.ClassFile != "" {
		text, err := os.ReadFile(o.ClassFile)
		if err != nil {
			return nil, fmt.Errorf("imageloader: Options.ClassFile: %w: %w", err, ErrInvalidOptions)
		}
		v.names, v.source = classLines(string(text)), o.ClassFile
		if len(v.names) == 0 {
			return nil, fmt.Errorf("imageloader: %s: no classes; write one a line: %w", o.ClassFile, ErrInvalidOptions)
		}
	}
	if len(v.names) == 0 {
		return &vocabulary{labels: map[string]int32{}}, nil
	}
	v.number()
	for i, name := range v.names {
		if name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("imageloader: %s: class %d is %q; it must be the name of a directory: %w", v.source, i, name, ErrInvalidOptions)
		}
		if int(v.labels[name]) != i {
			return nil, fmt.Errorf("imageloader: %s: class %q is there twice: %w", v.source, name, ErrInvalidOptions)
		}
	}
	return v, nil
}

// classLines returns the lines of a class file, without what editors add: a byte-order mark, carriage returns, empty lines
// at the end.
func classLines(text string) []string {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// number gives each name its label, the last one where a name is there twice.
func (v *vocabulary) number() {
	v.labels = make(map[string]int32, len(v.names))
	for i, name := range v.names {
		v.labels[name] = int32(i)
	}
}

// collect adds a class of the archive and returns a number for it, which sorted turns into its label.
func (v *vocabulary) collect(class string) int32 {
	n, ok := v.labels[class]
	if !ok {
		class = strings.Clone(class) // or it would keep the member's whole name
		n = int32(len(v.names))
		v.names = append(v.names, class)
		v.labels[class] = n
	}
	return n
}

// sorted fixes collected classes, ordered by name, and returns the label of each number that collect gave.
func (v *vocabulary) sorted() []int32 {
	collected := v.names
	v.names = slices.Sorted(slices.Values(collected))
	v.number()
	v.fixed, v.source = true, "the archive"
	labels := make([]int32, len(collected))
	for i, name := range collected {
		labels[i] = v.labels[name]
	}
	return labels
}

// unknown is the error for an image whose class is not in the vocabulary.
func (v *vocabulary) unknown(s *shard, e entry, class string) *Error {
	bad := s.badMember(e, nil, "class %q is not one of the %d in %s (%s); add it there, move the image, or give no classes to take the archive's",
		class, len(v.names), v.source, some(v.names))
	bad.Kind = ErrUnknownClass
	return bad
}

// some returns the first few of names.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:few], ", ") + ", …"
}
