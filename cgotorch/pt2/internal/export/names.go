package export

import (
	"fmt"
	"strconv"
	"strings"
)

// leafNames returns the inputs by the names that guards give them, without spaces:
// L['boxes']['left'][0]. An input may have several names.
func (s *Signature) leafNames() map[string]int {
	names := map[string]int{}
	leaf := 0
	var walk func(t *tree, paths []string)
	walk = func(t *tree, paths []string) {
		if t.leaf() {
			for _, path := range append(paths, fmt.Sprintf("L['flat_args'][%d]", leaf)) {
				if at, ok := names[path]; ok && at != leaf {
					names[path] = -1 // two inputs could be meant
				} else {
					names[path] = leaf
				}
			}
			leaf++
			return
		}
		for i, c := range t.Children {
			steps := []string{fmt.Sprintf("[%d]", i)}
			if t.Named {
				key := t.Keys[i]
				steps = []string{"[" + quotePython(key) + "]", "." + key}
				if _, err := strconv.ParseInt(key, 10, 64); err == nil {
					steps = []string{"[" + key + "]", "[" + quotePython(key) + "]"} // the tree does not tell a number from a text
				} else if !strings.HasSuffix(t.kind, "ict") {
					steps = append(steps, fmt.Sprintf("[%d]", i))
				}
			}
			var below []string
			for _, path := range paths {
				for _, step := range steps {
					below = append(below, path+step)
				}
			}
			walk(c, below[:min(len(below), mostLeafNames)])
		}
	}
	arguments, keywords := s.in.Children[0], s.in.Children[1]
	for i, c := range arguments.Children {
		name := s.position(i)
		paths := []string{"L[" + quotePython(name) + "]"}
		if at := strings.LastIndexByte(name, '_'); at >= 0 { // args[1] of *args has the name args_1
			if n, err := strconv.Atoi(name[at+1:]); err == nil {
				paths = append(paths, fmt.Sprintf("L[%s][%d]", quotePython(name[:at]), n))
			}
		}
		walk(c, paths)
	}
	for i, c := range keywords.Children {
		walk(c, []string{"L[" + quotePython(keywords.Keys[i]) + "]"})
	}
	return names
}

const mostLeafNames = 64 // of one input

// quotePython returns a text as Python's repr does, for texts that need no escapes.
func quotePython(text string) string {
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		return `"` + text + `"`
	}
	return "'" + text + "'"
}
