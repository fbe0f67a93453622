package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// guarded returns the .pt2 of a program of package pt2's corpus.
func guarded(t *testing.T, name string) string {
	data, err := os.ReadFile("../../cgotorch/pt2/testdata/guards/programs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var p struct {
			Name  string
			Model json.RawMessage
		}
		if err := json.Unmarshal(line, &p); err != nil {
			t.Fatal(err)
		}
		if p.Name != name {
			continue
		}
		var file bytes.Buffer
		w := zip.NewWriter(&file)
		for entry, text := range map[string]string{
			"models/model.json": string(p.Model), "data/weights/model_weights_config.json": `{"config": {}}`,
			"data/constants/model_constants_config.json": `{"config": {}}`, "archive_format": "pt2", "archive_version": "0", "byteorder": "little",
		} {
			e, err := w.CreateHeader(&zip.FileHeader{Name: "net/" + entry, Method: zip.Store})
			if err == nil {
				_, err = e.Write([]byte(text))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return file.String()
	}
	t.Fatalf("there is no program %s", name)
	return ""
}

// Programs are served with the lengths and batch sizes for which their guards hold. A program returns
// twice its input where it runs.
func TestOpener_Guards(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, c := range []struct {
		program, settings string
		lengths           []int  // of requests
		fails             string // loading fails with this error
	}{
		{"length", `{"lengths": [4, 5, 6]}`, []int{4, 3, 6, 5, 1}, ""},
		{"length", `{"lengths": [5, 7]}`, nil, "no length and no batch size fits"},
		{"length", `{"lengths": [4]}`, []int{4, 2}, ""},
		{"batch", `{"lengths": [3], "batch_sizes": [1, 2, 4]}`, []int{3, 3, 3}, ""},
		{"batch", `{"lengths": [3], "batch_sizes": [1, 3]}`, nil, "dimension 0 of the input x is"},
		{"length_and_batch", `{"lengths": [3, 12], "batch_sizes": [1, 4]}`, []int{3, 12, 3}, ""},
		{"length_and_batch", `{"lengths": [30, 40]}`, nil, "x.size()"},
	} {
		t.Run(c.program+c.settings, func(t *testing.T) {
			models, err := loaded(t, c.settings, guarded(t, c.program))
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("the error is %v, want %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, length := range c.lengths {
				values := make([]float32, length)
				for i := range values {
					values[i] = float32(i + 1)
				}
				got, err := models.Predict(context.Background(), "net", "", serve.Of(values, 1, int64(length)))
				if err != nil {
					t.Errorf("length %d: %v", length, err)
					continue
				}
				results, err := serve.Elements[float32](got[0])
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range results[:length] {
					if v != 2*values[i] {
						t.Errorf("length %d: element %d is %v, want %v", length, i, v, 2*values[i])
					}
				}
			}
		})
	}
}
