package archive

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vocabulary is the names of the classes, in the order of their labels.
type vocabulary struct {
	names  []string
	labels map[string]int32
	fixed  bool   // only these names are legal: the caller gave them, or a whole pass found them
	source string // where the names are from, for messages

	numeric bool            // all names are numbers
	only    map[string]bool // Options.Labels.Only. nil keeps all classes
	kept    []int32         // with `only`: the label of each name, -1 if it is left out
}

// givenClasses returns the vocabulary of the options. If the options give no classes, it returns
// an empty vocabulary that collects the archive's classes.
func givenClasses(o Options) (*vocabulary, error) {
	v := &vocabulary{names: o.Classes, fixed: true, source: "Options.Labels.Classes"}
	for _, name := range o.OnlyClasses {
		if v.only == nil {
			v.only = map[string]bool{}
		}
		v.only[name] = true
	}
	if len(v.names) == 0 {
		return &vocabulary{labels: map[string]int32{}, only: v.only}, nil
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
	if err := v.restrict(); err != nil {
		return nil, fmt.Errorf("imageloader: %s: %w: %w", v.source, err, ErrInvalidOptions)
	}
	return v, nil
}

// number gives each name its label. A name that occurs twice gets the label of its last place.
func (v *vocabulary) number() {
	v.labels = make(map[string]int32, len(v.names))
	v.numeric = true
	for i, name := range v.names {
		v.labels[name] = int32(i)
		_, is := isNumber(name)
		v.numeric = v.numeric && is
	}
}

// restrict numbers the classes of Options.Labels.Only, in the order of all classes. It fails if
// one of them is not among all classes.
func (v *vocabulary) restrict() error {
	if v.only == nil {
		return nil
	}
	for _, name := range sortedKeys(v.only) {
		if _, known := v.labels[name]; !known {
			return fmt.Errorf("Options.Labels.Only has %.60q, and there is no such class; there are %s", name, near(name, v.names))
		}
	}
	v.kept = make([]int32, len(v.names))
	next := int32(0)
	for i, name := range v.names {
		if v.kept[i] = -1; v.only[name] {
			v.kept[i] = next
			next++
		}
	}
	return nil
}

// keeps reports whether images of a class are wanted.
func (v *vocabulary) keeps(class string) bool { return v.only == nil || v.only[class] }

// label returns the label of the class with number n among all classes, or -1 for a class that
// Options.Labels.Only leaves out.
func (v *vocabulary) label(n int32) int32 {
	if v.kept == nil {
		return n
	}
	return v.kept[n]
}

// classes returns the names that labels are indices into.
func (v *vocabulary) classes() []string {
	if v.kept == nil {
		return slices.Clone(v.names)
	}
	return slices.DeleteFunc(slices.Clone(v.names), func(name string) bool { return !v.only[name] })
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

// sorted fixes the collected classes, in the order of their names. It returns the number of the
// name for each number that `collect` returned. If `numbers` is true, a class that is a number
// keeps this number. The function then fails if only some classes are numbers.
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
		return fmt.Errorf("some labels are numbers, such as %d, and some are names, such as %s; write all in one way", last, Printable(named))
	}
	v.names = make([]string, last+1)
	for i := range v.names {
		v.names[i] = strconv.Itoa(i)
	}
	return nil
}

// find returns the label of a class. If `numbers` is true, a class that is a number is an index
// into the names, unless all names are numbers. The label of a class that Options.Labels.Only
// leaves out is -1.
func (v *vocabulary) find(class string, numbers bool) (label int32, known bool) {
	n, known := v.labels[class]
	if i, ok := isNumber(class); ok && numbers && !v.numeric {
		n, known = int32(i), i < len(v.names)
	}
	if !known {
		return -1, v.only != nil && !v.only[class]
	}
	return v.label(n), true
}

// unknown returns the error for an image whose class is not in the vocabulary.
func (v *vocabulary) unknown(s *Shard, e Entry, class string) *Error {
	bad := s.badMember(e, nil, "class %q is not one of the %d in %s (%s); add it there, move the image, or give no classes to take the archive's",
		class, len(v.names), v.source, some(v.names))
	bad.Kind = ErrUnknownClass
	return bad
}

// some returns the first few names as a text.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:few], ", ") + ", …"
}

// near returns up to three names as a text. They are the names that are most like `name`.
func near(name string, names []string) string {
	const few = 3
	like := make(map[string]int, len(names))
	for _, n := range names {
		like[n] = distance(strings.ToLower(name), strings.ToLower(n))
	}
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int { return like[a] - like[b] })
	rest := len(sorted) - few
	sorted = sorted[:min(few, len(sorted))]
	for i, n := range sorted {
		sorted[i] = Printable(n)
	}
	text := strings.Join(sorted, ", ")
	if rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// distance returns how many bytes must be added, removed or replaced to make b of a. It looks at
// the first 64 bytes of each.
func distance(a, b string) int {
	const most = 64
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, corner+1, row[j]+1)
		}
	}
	return row[len(b)]
}
