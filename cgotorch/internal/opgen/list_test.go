package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	const text = `# a comment

## Numbers
Add(self, other)  a::add.Tensor  # adds
    # them # all.
Sizes(dtype, size...=shape)  a::sizes  # makes.

## Others
Pool(self=image, kernel; PoolOptions{~groups, !pad=NoPad:true,
        mode=Mode:"a,b;c)"}; fast:true)  a::pool  # pools.
@NoPad  leave it
    # out
@PoolOptions.Mode  how
`
	got, err := parseList("l.txt", text)
	if err != nil {
		t.Fatal(err)
	}
	want := &list{path: "l.txt",
		entries: []*entry{
			{line: 4, section: "Numbers", goName: "Add", operator: "a::add.Tensor", doc: "adds them # all.",
				positional: []item{{argument: "self"}, {argument: "other"}}},
			{line: 6, section: "Numbers", goName: "Sizes", operator: "a::sizes", doc: "makes.",
				positional: []item{{argument: "dtype"}, {argument: "size", goName: "shape", variadic: true}}},
			{line: 9, section: "Others", goName: "Pool", operator: "a::pool", doc: "pools.", structName: "PoolOptions",
				positional: []item{{argument: "self", goName: "image"}, {argument: "kernel"}},
				options: []item{{argument: "groups", zero: true}, {argument: "pad", goName: "NoPad", inverted: true, fallback: "true"},
					{argument: "mode", goName: "Mode", fallback: `"a,b;c)"`}},
				fixed: []item{{argument: "fast", fallback: "true"}}},
		},
		fields: map[string]*fieldDoc{"NoPad": {line: 11, text: "leave it out"}, "PoolOptions.Mode": {line: 13, text: "how"}},
	}
	if !reflect.DeepEqual(got.fields, want.fields) {
		t.Errorf("fields: got %+v, want %+v", got.fields, want.fields)
	}
	for i, e := range want.entries {
		if i >= len(got.entries) || !reflect.DeepEqual(got.entries[i], e) {
			t.Fatalf("entry %d: got %+v, want %+v", i, got.entries, e)
		}
	}
}

func TestParseList_Errors(t *testing.T) {
	tests := []struct{ text, want string }{
		{"Add", "want GoName(arguments) operator # doc"},
		{"add(self) a::b # c.", `"add" is not an exported Go name`},
		{"A dd(self) a::b # c.", `"A dd" is not an exported Go name`},
		{"Add(self", "Add: no closing parenthesis"},
		{"Add(self) add # c.", `Add: "add" is not the name of an operator`},
		{"Add(self) a::b also # c.", `"a::b also" is not the name`},
		{"Add(a; b; c:1; d) a::b # c.", "more than positional; options; fixed"},
		{"Add(self,) a::b # c.", `"" is not an argument`},
		{"Add(se lf) a::b # c.", `"se lf" is not an argument`},
		{"Add(self=a-b) a::b # c.", `"a-b" is not a Go name`},
		{"Add(;; a b:1) a::b # c.", `"a b:1" is not an argument`},
		{"Add(; a b) a::b # c.", `"a b" is not an argument`},
		{"Add(; p:) a::b # c.", "no value after the colon"},
		{"Add(~a) a::b # c.", "a: marks and defaults are for options"},
		{"Add(!a=B) a::b # c.", "a: marks and defaults are for options"},
		{"Add(a:1) a::b # c.", "a: marks and defaults are for options"},
		{"Add(a..., b) a::b # c.", "only the last parameter can be variadic"},
		{"Add(a...; b) a::b # c.", "only the last parameter can be variadic"},
		{"Add(; a...) a::b # c.", "an option cannot be variadic"},
		{"Add(; *a) a::b # c.", "an option cannot stand for all dimensions"},
		{"Add(;; *a:1) a::b # c.", "a fixed argument is written name:value"},
		{"Add(; !a) a::b # c.", "!a needs a name for the opposite"},
		{"Add(;; a) a::b # c.", "a fixed argument is written name:value"},
		{"Add(;; a=B:1) a::b # c.", "a fixed argument is written name:value"},
		{"Add(; options{a}) a::b # c.", `"options" is not an exported Go name`},
		{"    # lost", "there is none"},
		{"Add(a) a::b # c.\n\n    # lost", "l.txt:3: an indented comment"},
		{"@A one\n@A two", "l.txt:2: A is described at line 1 already"},
		{"@A", "A has no description"},
	}
	for _, test := range tests {
		_, err := parseList("l.txt", test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "opgen: l.txt:") {
			t.Errorf("parseList(%q) = %v, want %q", test.text, err, test.want)
		}
	}
}

// The error names all bad lines, each with its number. The number is correct also if the
// arguments of an earlier entry take several lines.
func TestParseList_SeveralErrors(t *testing.T) {
	_, err := parseList("l.txt", "add(\na)  a::b # c.\n\nSub\n")
	if err == nil || !strings.Contains(err.Error(), "l.txt:1:") || !strings.Contains(err.Error(), "l.txt:4:") {
		t.Errorf("got %v, want lines 1 and 4", err)
	}
}
