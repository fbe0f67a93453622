package export

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

func TestParseTree(t *testing.T) {
	const leaf = `{"type": null, "context": null, "children_spec": []}`
	for name, c := range map[string]struct{ node, want string }{
		"tuple":       {`"builtins.tuple", "context": "null", "children_spec": [A, A]`, "[0 1]"},
		"deque":       {`"collections.deque", "context": "4", "children_spec": [A, A]`, "[0 1]"},
		"dict":        {`"builtins.dict", "context": "[\"b\", \"a\"]", "children_spec": [A, A]`, "map[a:1 b:0]"},
		"numbers":     {`"builtins.dict", "context": "[3, 4]", "children_spec": [A, A]`, "map[3:0 4:1]"},
		"defaultdict": {`"collections.defaultdict", "context": {"default_factory_module": "builtins", "default_factory_name": "list", "dict_context": ["b", "a"]}, "children_spec": [A, A]`, "map[a:1 b:0]"},
		"named tuple": {`"collections.namedtuple", "context": "Pair", "children_spec": [A, A]`, "map[left:0 right:1]"},
		"dataclass":   {`"Found", "context": "[[\"score\"], [\"boxes\"]]", "children_spec": [A]`, "map[score:0]"},
		"cache":       {`"transformers.cache_utils.DynamicCache", "context": "[[\"key_cache\", \"value_cache\"], [null, null]]", "children_spec": [A, A]`, "map[key_cache:0 value_cache:1]"},
		"output":      {`"transformers.modeling_outputs.BaseModelOutput", "context": "[\"last_hidden_state\"]", "children_spec": [A]`, "map[last_hidden_state:0]"},
		"own list":    {`"Mine", "context": ["b", "a"], "children_spec": [A, A]`, "map[a:1 b:0]"},
		"own number":  {`"Mine", "context": 7, "children_spec": [A]`, "[0]"},
		"own object":  {`"Mine", "context": {"version": 1}, "children_spec": [A]`, "[0]"},
		"own class":   {`"Mine", "context": "{\"version\": 1}", "children_spec": [A]`, "[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := must.Get(parseTree(`[1, {"type": `+strings.ReplaceAll(c.node, "A", leaf)+`}]`, map[string]namedTuple{"Pair": {Fields: []string{"left", "right"}}}))(t)
			leaves := []any{0, 1}[:tree.leaves()]
			value, _ := tree.Unflatten(leaves)
			if got := fmt.Sprint(value); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			back, err := tree.flatten("x", value, nil)
			if fmt.Sprint(back) != fmt.Sprint(leaves) || err != nil {
				t.Errorf("flatten returns %v (%v), want %v", back, err, leaves)
			}
		})
	}
}
