package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// entry is a layer, a loss, or Go text.
type entry struct {
	Name    string
	Doc     string
	Fields  []field
	Options string   // of a loss: the type of its options, if the entry has no fields
	Args    []string // of a loss: the names of its tensors
	Shape   string   // "[N, C] to [N]": what Forward maps; "" means that the shape stays
	More    string   // sentences that end the comment of Forward
	Checks  []string // Go statements
	Calls   []call
	Go      string // Go text, which stands for all other fields
}

// field is a setting of a layer or a loss.
type field struct {
	Name, Type, Default, Comment string
}

// call is what Forward or the loss returns if Condition holds. The last call has no condition.
type call struct{ Condition, Value string }

var (
	dimensions = regexp.MustCompile(`\{((?:\d,)*\d)\}`)
	lossHead   = regexp.MustCompile(`^(\w+)\(([\w, ]+)\)( .*)$`)
	fieldLine  = regexp.MustCompile(`^(\w+)(?: ([^=:]*[^=: ]))?(?: = ([^:]+))?(?:: (.+))?$`)
)

// placeholders are the words in braces of an entry for several numbers of dimensions, by the number
// of dimensions.
var placeholders = [4]*strings.Replacer{
	1: replacer("1 0 1 int 1", "sequences sequence positions", "L", "length"),
	2: replacer("2 0x0 1x1 Size Square(1)", "images image pixels", "H, W", "height, width"),
	3: replacer("3 0x0x0 1x1x1 Volume Cube(1)", "volumes volume points", "D, H, W", "depth, height, width"),
}

func replacer(numbers, words, shape, kernel string) *strings.Replacer {
	pairs := []string{"{H}", shape, "{H'}", strings.NewReplacer("L", "L'", "D", "D'", "H", "H'", "W", "W'").Replace(shape), "{height}", kernel}
	for i, value := range strings.Fields(numbers + " " + words) {
		pairs = append(pairs, strings.Fields("{d} {0} {1} {Size} {one} {images} {image} {points}")[i], value)
	}
	return strings.NewReplacer(pairs...)
}

// parse returns the entries of a table. A paragraph for several numbers of dimensions gives one
// entry for each number.
func parse(table string) ([]entry, error) {
	var entries []entry
	shared := map[string]field{}
	for _, paragraph := range strings.Split(table, "\n\n") {
		lines := slices.DeleteFunc(strings.Split(paragraph, "\n"), func(line string) bool {
			return line == "" || strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "##")
		})
		if len(lines) == 0 || lines[0] == "#" {
			continue
		}
		versions := []string{strings.Join(lines, "\n")}
		if in := dimensions.FindStringSubmatch(lines[0]); in != nil {
			text := strings.Replace(versions[0], in[0], "{d}", 1)
			versions = nil
			for _, d := range strings.Split(in[1], ",") {
				versions = append(versions, placeholders[d[0]-'0'].Replace(text))
			}
		}
		for _, version := range versions {
			e, err := parseEntry(strings.Split(version, "\n"), shared)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", lines[0], err)
			}
			if e.Name != "settings" {
				entries = append(entries, e)
				continue
			}
			for _, f := range e.Fields {
				shared[f.Name] = f
			}
		}
	}
	return entries, nil
}

// parseEntry reads the lines of one entry.
func parseEntry(lines []string, shared map[string]field) (entry, error) {
	if rest, ok := strings.CutPrefix(lines[0], "go "); ok {
		return entry{Name: rest, Go: strings.ReplaceAll(strings.Join(lines[1:], "\n"), "\n#\n", "\n\n")}, nil
	}
	head, rest := lines[0], lines[1:]
	for len(rest) > 0 && rest[0][0] != '\t' {
		head, rest = head+" "+rest[0], rest[1:]
	}
	e := entry{Doc: head}
	if m := lossHead.FindStringSubmatch(head); m != nil {
		e.Args, e.Doc = strings.Split(m[2], ", "), m[1]+m[3]
	}
	e.Name, _, _ = strings.Cut(e.Doc, " ")
	for _, line := range rest {
		if err := e.add(strings.TrimSpace(line), shared); err != nil {
			return e, err
		}
	}
	if len(e.Calls) == 0 && e.Name != "settings" {
		return e, fmt.Errorf("the entry has no line with =")
	}
	return e, nil
}

// add reads one line of an entry.
func (e *entry) add(line string, shared map[string]field) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "=":
		e.Calls = append(e.Calls, call{Value: rest})
	case "if":
		condition, value, ok := strings.Cut(rest, " = ")
		if !ok {
			return fmt.Errorf("%q has no value behind =", line)
		}
		e.Calls = append(e.Calls, call{condition, value})
	case "check":
		e.Checks = append(e.Checks, rest)
	case "maps":
		e.Shape, e.More, _ = strings.Cut(rest, ". ")
		e.Shape = strings.TrimSuffix(e.Shape, ".")
	case "options":
		e.Options = rest
	default:
		m := fieldLine.FindStringSubmatch(line)
		if m == nil {
			return fmt.Errorf("%q is no setting", line)
		}
		f := field{m[1], m[2], m[3], m[4]}
		if f.Type == "" {
			known, ok := shared[f.Name]
			if !ok {
				return fmt.Errorf("%q has no type, here or in the settings", line)
			}
			f = known
		}
		e.Fields = append(e.Fields, f)
	}
	return nil
}
