package imageloader

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// vocabulary is the names of the classes, in the order of their labels.
type vocabulary struct {
	names  []string
	labels map[string]int32
	fixed  bool   // no other class is legal: given by the caller, or found by a whole pass
	source string // source of the names, for messages: "Options.Classes", or the name of a file
}

// givenClasses returns the vocabulary of the options, or an empty vocabulary to collect the
// archive's classes in.
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

// classLines returns the lines of a class file, without an editor's additions: a byte-order mark,
// carriage returns, empty lines at the end.
func classLines(text string) []string {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// number gives each name its label. A name that is there twice gets its last place.
func (v *vocabulary) number() {
	v.labels = make(map[string]int32, len(v.names))
	for i, name := range v.names {
		v.labels[name] = int32(i)
	}
}

// collect adds a class of the archive and returns a number for it, which sorted turns into its
// label.
func (v *vocabulary) collect(class string) int32 {
	n, ok := v.labels[class]
	if !ok {
		class = strings.Clone(class) // a part would keep the member's whole name alive
		n = int32(len(v.names))
		v.names = append(v.names, class)
		v.labels[class] = n
	}
	return n
}

// sorted fixes collected classes, ordered by name, and returns the label of each number of collect.
// Labels that are numbers keep their value. It fails where only some are numbers.
func (v *vocabulary) sorted(numbers bool) ([]int32, error) {
	collected := v.names
	v.names = slices.Sorted(slices.Values(collected))
	if numbers {
		if err := v.enumerate(); err != nil {
			return nil, err
		}
	}
	v.number()
	v.fixed, v.source = true, "the archive"
	labels := make([]int32, len(collected))
	for i, name := range collected {
		labels[i] = v.labels[name]
	}
	return labels, nil
}

// enumerate extends names that are numbers to all numbers up to the largest.
func (v *vocabulary) enumerate() error {
	last, named := -1, ""
	for _, name := range v.names {
		if n, ok := isNumber(name); ok {
			last = max(last, n)
		} else {
			named = name
		}
	}
	if last < 0 {
		return nil
	}
	if named != "" {
		return fmt.Errorf("some labels are numbers, such as %d, and some are names, such as %s; write all in one way", last, printable(named))
	}
	v.names = make([]string, last+1)
	for i := range v.names {
		v.names[i] = strconv.Itoa(i)
	}
	return nil
}

// find returns the label of a class, which may be a number where numbers says so.
func (v *vocabulary) find(class string, numbers bool) (label int32, known bool) {
	if n, ok := isNumber(class); ok && numbers {
		return int32(n), n < len(v.names)
	}
	label, known = v.labels[class]
	return label, known
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
