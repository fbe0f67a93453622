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
	fixed  bool   // only these names are legal: the caller gave them, or a whole pass found them
	source string // where the names are from, for messages: "Options.Classes", or the name of a file
}

// givenClasses returns the vocabulary of the options. If the options give no classes, it returns
// an empty vocabulary that collects the archive's classes.
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

// classLines returns the lines of a class file. It drops what editors add: a byte-order mark,
// carriage returns, and empty lines at the end.
func classLines(text string) []string {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// number gives each name its label. A name that occurs twice gets the label of its last place.
func (v *vocabulary) number() {
	v.labels = make(map[string]int32, len(v.names))
	for i, name := range v.names {
		v.labels[name] = int32(i)
	}
}

// collect adds a class of the archive and returns a number for the class. Later, the function
// `sorted` turns this number into the label.
func (v *vocabulary) collect(class string) int32 {
	n, ok := v.labels[class]
	if !ok {
		class = strings.Clone(class) // a substring would keep the member's whole name in memory
		n = int32(len(v.names))
		v.names = append(v.names, class)
		v.labels[class] = n
	}
	return n
}

// sorted fixes the collected classes, in the order of their names. It returns the label for each
// number that `collect` returned. If `numbers` is true, a class that is a number keeps this
// number as its label. The function then fails if only some classes are numbers.
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

// enumerate is for classes whose names are numbers. It replaces the names by all numbers from 0
// to the largest. It does nothing if no name is a number, and fails if only some names are
// numbers.
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

// find returns the label of a class. If `numbers` is true, a class that is a number is its own
// label.
func (v *vocabulary) find(class string, numbers bool) (label int32, known bool) {
	if n, ok := isNumber(class); ok && numbers {
		return int32(n), n < len(v.names)
	}
	label, known = v.labels[class]
	return label, known
}

// unknown returns the error for an image whose class is not in the vocabulary.
func (v *vocabulary) unknown(s *shard, e entry, class string) *Error {
	bad := s.badMember(e, nil, "class %q is not one of the %d in %s (%s); add it there, move the image, or give no classes to take the archive's",
		class, len(v.names), v.source, some(v.names))
	bad.Kind = ErrUnknownClass
	return bad
}

// The function `some` returns the first few names as a text.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:few], ", ") + ", …"
}
