package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteTable(t *testing.T) {
	var rows bytes.Buffer
	for _, r := range []row{against("op/add/cpu", 1200, "ns", "at::add", 800, lower, ""), alone("all-reduce", 64, "us", "")} {
		if err := r.write(&rows); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(path, rows.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := writeTable(path, &table); err != nil {
		t.Fatal(err)
	}
	if want := "| --- |\n| op/add/cpu | 1200 | ns | at::add | 800 | 0.66667 |\n| all-reduce | 64 | us |  |  |  |\n"; !strings.HasSuffix(table.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", table.String(), want)
	}
	if err := writeTable(os.DevNull, &table); err != nil {
		t.Error(err)
	}
}
