package export

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// tree is the shape of nested Python values: of the arguments or of the results of a program.
type tree struct {
	kind     string // the Python type, such as "builtins.dict"; "" is a leaf
	Keys     []string
	Named    bool // the children have the names `keys`
	Children []*tree
}

const mostTreeDepth = 100

// treeText is the JSON text of a tree.
type treeText struct {
	Type     *string     `json:"type"`
	Context  contextText `json:"context"`
	Children []*treeText `json:"children_spec"`
}

// contextText is what a tree says about a value beside its children, such as the JSON text of the
// keys of a dict. A defaultdict has an object with the keys. A class of a user may have any value.
type contextText string

func (c *contextText) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, (*string)(c))
	}
	var factory struct {
		Keys json.RawMessage `json:"dict_context"`
	}
	if json.Unmarshal(text, &factory) == nil && factory.Keys != nil {
		text = factory.Keys
	}
	*c = contextText(text)
	return nil
}

// parseTree reads the text [1, {...}].
func parseTree(text string, tuples map[string]namedTuple) (*tree, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal([]byte(text), &parts); err != nil {
		return nil, err
	}
	if len(parts) != 2 || string(parts[0]) != "1" {
		return nil, fmt.Errorf("a tree of another version than 1: %.60s", text)
	}
	var root treeText
	if err := json.Unmarshal(parts[1], &root); err != nil {
		return nil, err
	}
	return root.tree(tuples, 0)
}

func (t *treeText) tree(tuples map[string]namedTuple, depth int) (*tree, error) {
	if depth > mostTreeDepth {
		return nil, fmt.Errorf("more than %d values inside each other", mostTreeDepth)
	}
	if t == nil || t.Type == nil {
		return &tree{}, nil
	}
	result := &tree{kind: *t.Type}
	for _, child := range t.Children {
		c, err := child.tree(tuples, depth+1)
		if err != nil {
			return nil, err
		}
		result.Children = append(result.Children, c)
	}
	return result, result.name(t.Context, tuples)
}

// name finds the names of the children of a dict, a named tuple or a dataclass.
func (t *tree) name(context contextText, tuples map[string]namedTuple) error {
	switch t.kind {
	case "builtins.tuple", "builtins.list", "collections.deque":
		return nil
	case "collections.namedtuple":
		t.Keys = tuples[string(context)].Fields
	default:
		var keys []any
		if json.Unmarshal([]byte(context), &keys) != nil {
			break
		}
		// A dataclass has two lists: the names of its fields, and the names of those that are None.
		// A cache of transformers has the names first, too.
		if len(keys) == 2 && !strings.HasSuffix(t.kind, "ict") {
			if fields, ok := keys[0].([]any); ok {
				keys = fields
			}
		}
		for _, key := range keys {
			t.Keys = append(t.Keys, fmt.Sprint(key))
		}
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(t.Keys)))
	t.Named = len(t.Keys) == len(t.Children) && len(distinct) == len(t.Keys)
	if !t.Named && strings.HasSuffix(t.kind, "ict") {
		return fmt.Errorf("a %s of %d values has %d different keys: %.150q", t.kind, len(t.Children), len(distinct), distinct)
	}
	return nil
}

func (t *tree) leaf() bool { return t.kind == "" }

func (t *tree) leaves() int {
	if t.leaf() {
		return 1
	}
	n := 0
	for _, c := range t.Children {
		n += c.leaves()
	}
	return n
}

// child returns the name of child i in a path, such as ["mask"] or [2].
func (t *tree) child(i int) string {
	if t.Named {
		return fmt.Sprintf("[%q]", t.Keys[i])
	}
	return fmt.Sprintf("[%d]", i)
}

// Paths returns the names of the leaves, such as image or boxes["left"][0]. It cuts long names.
func (t *tree) Paths(at string, paths []string) []string {
	const most = 1000
	if len(at) > most {
		at = strings.ToValidUTF8(at[:most], "") + "…"
	}
	if t.leaf() {
		return append(paths, at)
	}
	for i, c := range t.Children {
		paths = c.Paths(at+t.child(i), paths)
	}
	return paths
}

// flatten appends the leaves of a Go value. A tuple or a list is a slice. A dict, a named tuple or
// a dataclass is a map from strings.
func (t *tree) flatten(at string, v any, leaves []any) ([]any, error) {
	if t.leaf() {
		return append(leaves, v), nil
	}
	value := reflect.ValueOf(v)
	_, isTensor := v.(*cgotorch.Tensor)
	switch {
	case isTensor || !value.IsValid():
		return nil, fmt.Errorf("%s is %T, want %s", at, v, t)
	case t.Named && value.Kind() == reflect.Map && value.Type().Key().Kind() == reflect.String:
		if value.Len() != len(t.Keys) {
			return nil, fmt.Errorf("%s has %d values, want %s", at, value.Len(), t)
		}
		for i, key := range t.Keys {
			item := value.MapIndex(reflect.ValueOf(key).Convert(value.Type().Key()))
			if !item.IsValid() {
				return nil, fmt.Errorf("%s has no %q, want %s", at, key, t)
			}
			var err error
			if leaves, err = t.Children[i].flatten(at+t.child(i), item.Interface(), leaves); err != nil {
				return nil, err
			}
		}
		return leaves, nil
	case t.kind != "builtins.dict" && (value.Kind() == reflect.Slice || value.Kind() == reflect.Array):
		if value.Len() != len(t.Children) {
			return nil, fmt.Errorf("%s has %d values, want %s", at, value.Len(), t)
		}
		for i, c := range t.Children {
			var err error
			if leaves, err = c.flatten(at+t.child(i), value.Index(i).Interface(), leaves); err != nil {
				return nil, err
			}
		}
		return leaves, nil
	}
	return nil, fmt.Errorf("%s is %T, want %s", at, v, t)
}

// Unflatten makes a Go value of leaves, and returns the leaves that are left.
func (t *tree) Unflatten(leaves []any) (any, []any) {
	if t.leaf() {
		return leaves[0], leaves[1:]
	}
	values := make([]any, len(t.Children))
	for i, c := range t.Children {
		values[i], leaves = c.Unflatten(leaves)
	}
	if !t.Named {
		return values, leaves
	}
	byName := make(map[string]any, len(values))
	for i, v := range values {
		byName[t.Keys[i]] = v
	}
	return byName, leaves
}

// String describes the Go value for a tree.
func (t *tree) String() string {
	switch {
	case t.leaf():
		return "a value"
	case t.Named:
		return fmt.Sprintf("a map with the keys %.150q", t.Keys)
	default:
		return fmt.Sprintf("a slice of %d values", len(t.Children))
	}
}
