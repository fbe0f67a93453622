package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseSchema(t *testing.T) {
	tests := []struct {
		text      string
		arguments []argument
		results   []argument
	}{
		{"aten::relu(Tensor self) -> Tensor",
			[]argument{{name: "self", kind: "Tensor"}},
			[]argument{{kind: "Tensor"}}},
		{"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
			[]argument{{name: "self", kind: "Tensor"}, {name: "other", kind: "Tensor"}, {name: "alpha", kind: "Scalar", fallback: "1"}},
			[]argument{{kind: "Tensor"}}},
		{"aten::add_.Tensor(Tensor(a!) self) -> Tensor(a!)",
			[]argument{{name: "self", kind: "Tensor", writes: true}},
			[]argument{{kind: "Tensor", writes: true}}},
		{"a::lists(Tensor(a!)[] self, Tensor?[] indices, Tensor[](b!) c, Tensor(d!)? e, Tensor(f -> *) g) -> Tensor(f)[]",
			[]argument{{name: "self", kind: "Tensor[]", writes: true}, {name: "indices", kind: "Tensor?[]"},
				{name: "c", kind: "Tensor[]", writes: true}, {name: "e", kind: "Tensor?", writes: true}, {name: "g", kind: "Tensor"}},
			[]argument{{kind: "Tensor[]"}}},
		{"a::sizes(SymInt[2] stride=[1, 1], int[1]? dim=None, SymInt[] size, bool[3] mask, int[2] padding=0) -> ()",
			[]argument{{name: "stride", kind: "SymInt[]", fallback: "[1, 1]"}, {name: "dim", kind: "int[]?", fallback: "None"},
				{name: "size", kind: "SymInt[]"}, {name: "mask", kind: "bool[]"}, {name: "padding", kind: "int[]", fallback: "0"}},
			nil},
		{`a::words(str? a, str b="none", str c="x), \"y", ScalarType? d=4, MemoryFormat e=0) -> bool`,
			[]argument{{name: "a", kind: "str?"}, {name: "b", kind: "str", fallback: `"none"`},
				{name: "c", kind: "str", fallback: `"x), \"y"`}, {name: "d", kind: "ScalarType?", fallback: "4"},
				{name: "e", kind: "MemoryFormat", fallback: "0"}},
			[]argument{{kind: "bool"}}},
		{"a::numbers(float a=1.0000000000000001e-05, float b=0., float c=-inf, complex d=(1,2.5e+1), complex e=1.+2.j, int[] f=[]) -> int",
			[]argument{{name: "a", kind: "float", fallback: "1.0000000000000001e-05"}, {name: "b", kind: "float", fallback: "0."},
				{name: "c", kind: "float", fallback: "-inf"}, {name: "d", kind: "complex", fallback: "(1,2.5e+1)"},
				{name: "e", kind: "complex", fallback: "1.+2.j"}, {name: "f", kind: "int[]", fallback: "[]"}},
			[]argument{{kind: "int"}}},
		{"a::max.dim(Tensor self, int dim) -> (Tensor(a!) values, Tensor indices)",
			[]argument{{name: "self", kind: "Tensor"}, {name: "dim", kind: "int"}},
			[]argument{{name: "values", kind: "Tensor", writes: true}, {name: "indices", kind: "Tensor"}}},
		{"a::odd(Dict(str, t)(a!) self, (Tensor, int) pair, __torch__.torch.classes.a.B(c!) box, t[][] nested, ...) -> t(*)",
			[]argument{{name: "self", kind: "Dict(str, t)", writes: true}, {name: "pair", kind: "(Tensor, int)"},
				{name: "box", kind: "__torch__.torch.classes.a.B", writes: true}, {name: "nested", kind: "t[][]"}},
			[]argument{{kind: "t"}}},
		{"a::print(...) -> ...", nil, []argument{{kind: "..."}}},
	}
	for _, test := range tests {
		got, err := parseSchema(test.text)
		if err != nil {
			t.Errorf("parseSchema(%q): %v", test.text, err)
			continue
		}
		want := &schema{text: test.text, name: schemaName(test.text), arguments: test.arguments, results: test.results}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("parseSchema(%q)\n got %+v\nwant %+v", test.text, got, want)
		}
	}
}

func TestParseSchema_Errors(t *testing.T) {
	tests := []struct{ text, want string }{
		{"relu(Tensor self) -> Tensor", "no namespace"},
		{"a::b", "want ( at column 5"},
		{"a::b(", "want a type at column 6"},
		{"a::b(Tensor) -> Tensor", "want an argument's name at column 12"},
		{"a::b(Tensor a Tensor b) -> Tensor", "want , or ) at column 15"},
		{"a::b(int[x] a) -> Tensor", "want ] at column 10"},
		{"a::b(Dict a) -> Tensor", "want a closed bracket at column 11"},
		{"a::b(Tensor(a! a", "want a closed bracket"},
		{`a::b(str a="x) -> Tensor`, "want the end of the string"},
		{"a::b(int a=) -> Tensor", "want a default at column 12"},
		{"a::b(int a)", "want -> at column 12"},
		{"a::b(int a) -> ", "want a type"},
		{"a::b(int a) -> (Tensor x Tensor)", "want , or ) at column 26"},
		{"a::b(int a) -> (Tensor, ", "want a type"},
		{"a::b(int a) -> Tensor b c", "unexpected text at column 25"},
	}
	for _, test := range tests {
		if _, err := parseSchema(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("parseSchema(%q) = %v, want %q", test.text, err, test.want)
		}
	}
}

func TestParseSchemas_Errors(t *testing.T) {
	const good = "a::b(int a) -> int\n"
	for text, want := range map[string]string{
		good + "\nbad": "opgen: s.txt:3: ",
		good + good:    "opgen: s.txt:2: a second schema of a::b",
	} {
		if _, err := parseSchemas("s.txt", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseSchemas(%q) = %v, want %q", text, err, want)
		}
	}
}
