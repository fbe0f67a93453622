package opschema

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseSchema(t *testing.T) {
	tests := []struct {
		text      string
		arguments []Argument
		results   []Argument
	}{
		{"aten::relu(Tensor self) -> Tensor",
			[]Argument{{Name: "self", Kind: "Tensor"}},
			[]Argument{{Kind: "Tensor"}}},
		{"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
			[]Argument{{Name: "self", Kind: "Tensor"}, {Name: "other", Kind: "Tensor"}, {Name: "alpha", Kind: "Scalar", Fallback: "1"}},
			[]Argument{{Kind: "Tensor"}}},
		{"aten::add_.Tensor(Tensor(a!) self) -> Tensor(a!)",
			[]Argument{{Name: "self", Kind: "Tensor", Shares: true, Writes: true}},
			[]Argument{{Kind: "Tensor", Shares: true, Writes: true}}},
		{"a::lists(Tensor(a!)[] self, Tensor?[] indices, Tensor[](b!) c, Tensor(d!)? e, Tensor(f -> *) g) -> Tensor(f)[]",
			[]Argument{{Name: "self", Kind: "Tensor[]", Shares: true, Writes: true}, {Name: "indices", Kind: "Tensor?[]"},
				{Name: "c", Kind: "Tensor[]", Shares: true, Writes: true}, {Name: "e", Kind: "Tensor?", Shares: true, Writes: true}, {Name: "g", Kind: "Tensor", Shares: true}},
			[]Argument{{Kind: "Tensor[]", Shares: true}}},
		{"a::sizes(SymInt[2] stride=[1, 1], int[1]? dim=None, SymInt[] size, bool[3] mask, int[2] padding=0) -> ()",
			[]Argument{{Name: "stride", Kind: "SymInt[]", Fallback: "[1, 1]"}, {Name: "dim", Kind: "int[]?", Fallback: "None"},
				{Name: "size", Kind: "SymInt[]"}, {Name: "mask", Kind: "bool[]"}, {Name: "padding", Kind: "int[]", Fallback: "0"}},
			nil},
		{`a::words(str? a, str b="none", str c="x), \"y", ScalarType? d=4, MemoryFormat e=0) -> bool`,
			[]Argument{{Name: "a", Kind: "str?"}, {Name: "b", Kind: "str", Fallback: `"none"`},
				{Name: "c", Kind: "str", Fallback: `"x), \"y"`}, {Name: "d", Kind: "ScalarType?", Fallback: "4"},
				{Name: "e", Kind: "MemoryFormat", Fallback: "0"}},
			[]Argument{{Kind: "bool"}}},
		{"a::numbers(float a=1.0000000000000001e-05, float b=0., float c=-inf, complex d=(1,2.5e+1), complex e=1.+2.j, int[] f=[]) -> int",
			[]Argument{{Name: "a", Kind: "float", Fallback: "1.0000000000000001e-05"}, {Name: "b", Kind: "float", Fallback: "0."},
				{Name: "c", Kind: "float", Fallback: "-inf"}, {Name: "d", Kind: "complex", Fallback: "(1,2.5e+1)"},
				{Name: "e", Kind: "complex", Fallback: "1.+2.j"}, {Name: "f", Kind: "int[]", Fallback: "[]"}},
			[]Argument{{Kind: "int"}}},
		{"a::max.dim(Tensor self, int dim) -> (Tensor(a!) values, Tensor indices)",
			[]Argument{{Name: "self", Kind: "Tensor"}, {Name: "dim", Kind: "int"}},
			[]Argument{{Name: "values", Kind: "Tensor", Shares: true, Writes: true}, {Name: "indices", Kind: "Tensor"}}},
		{"a::odd(Dict(str, t)(a!) self, (Tensor, int) pair, __torch__.torch.classes.a.B(c!) box, t[][] nested, ...) -> t(*)",
			[]Argument{{Name: "self", Kind: "Dict(str, t)", Shares: true, Writes: true}, {Name: "pair", Kind: "(Tensor, int)"},
				{Name: "box", Kind: "__torch__.torch.classes.a.B", Shares: true, Writes: true}, {Name: "nested", Kind: "t[][]"}},
			[]Argument{{Kind: "t", Shares: true}}},
		{"a::print(...) -> ...", nil, []Argument{{Kind: "..."}}},
	}
	for _, test := range tests {
		got, err := Parse(test.text)
		if err != nil {
			t.Errorf("Parse(%q): %v", test.text, err)
			continue
		}
		want := &Schema{Text: test.text, Name: Name(test.text), Arguments: test.arguments, Results: test.results}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("Parse(%q)\n got %+v\nwant %+v", test.text, got, want)
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
		if _, err := Parse(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Parse(%q) = %v, want %q", test.text, err, test.want)
		}
	}
}
