package main

import (
	"strings"
	"testing"
)

func TestParseTable_Errors(t *testing.T) {
	for text, want := range map[string]string{
		"abs aten::abs":                          "d.txt:1: abs: the name does not begin with torch.",
		"# A comment.\n\ntorch.abs":              "d.txt:3: torch.abs: no operator, no other name and no reason",
		"torch.a aten::a\ntorch.a aten::a":       "d.txt:2: torch.a: in line 1 already",
		"torch.save ! lazy: no time":             `"lazy" is no reason`,
		"torch.save ! python writes files":       `"python writes files" is no reason`,
		"torch.a aten::a\ntorch.b ! dtype: x\nb": "d.txt:3: b: the name",
	} {
		if _, err := parseTable("d.txt", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// A documented operator needs a function in the right package.
func TestTable_Check(t *testing.T) {
	l, err := parseList("l.txt", "Abs(self) aten::abs # a.\nSVD(A) aten::linalg_svd # a.\nAddScalar(self) aten::add.Scalar # a.\n## package fft: F.\nFFT(self) aten::fft_fft # a.\n")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"torch.abs aten::abs\ntorch.absolute = torch.abs":               "",
		"torch.add aten::add":                                           "",
		"torch.fft.fft aten::fft_fft":                                   "",
		"torch.save ! python: files\ntorch.nn.functional.abs aten::abs": "",
		"torch.sub aten::sub":                                           "d.txt:1: torch.sub: aten::sub has no function of package cgotorch in l.txt",
		"torch.abs aten::abs aten::sub":                                 "aten::sub has no function",
		"torch.linalg.svd aten::linalg_svd":                             "aten::linalg_svd has no function of package linalg",
		"torch.absolute = torch.abs":                                    "torch.abs is no function of the table that has an operator",
		"torch.a = torch.b\ntorch.b ! python: b":                        "torch.b is no function of the table that has an operator",
	} {
		table, err := parseTable("d.txt", text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		switch err := table.check(l); {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// The committed page is the page that "make generate" writes.
func TestPage_UpToDate(t *testing.T) {
	got, err := makePage("../../operators.txt", "documented.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != read(t, "../../../docs/operators.md") {
		t.Error("docs/operators.md is not what operators.txt and documented.txt give: run make generate")
	}
}

// A function has PyTorch's name in Go spelling, so that a search for one finds the other.
func TestTable_Names(t *testing.T) {
	renamed := map[string]string{ // PyTorch's name chooses among several operators, or several names share one operator
		"torch.nn.functional.dropout1d": "FeatureDropout", "torch.nn.functional.dropout2d": "FeatureDropout",
		"torch.nn.functional.dropout3d": "FeatureDropout", "torch.nn.functional.interpolate": "UpsampleNearest1d",
	}
	l, err := parseList("operators.txt", read(t, "../../operators.txt"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := parseTable("documented.txt", read(t, "documented.txt"))
	if err != nil {
		t.Fatal(err)
	}
	plain := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
	for _, r := range table.rows {
		if len(r.operators) == 0 {
			continue
		}
		name := r.name[strings.LastIndexByte(r.name, '.')+1:]
		want := plain(name)
		if strings.HasSuffix(name, "_") {
			want += "inplace"
		}
		if renamed[r.name] != "" {
			want = plain(renamed[r.name])
		}
		var names []string
		found := false
		for _, e := range l.typed(r.pkg(), r.operators[0]) {
			names = append(names, e.goName)
			found = found || plain(e.goName) == want
		}
		if !found {
			t.Errorf("%s is called %v", r.name, names)
		}
	}
}
