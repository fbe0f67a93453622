package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fewImages writes an archive with the given number of CIFAR-10 images. It returns the path.
func fewImages(t *testing.T, images int) string {
	t.Helper()
	all, err := readPhotographs("../examples/train/data/cifar10-10k.tgz")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "few.tgz")
	if err := all.writeTgz(path, images); err != nil {
		t.Fatal(err)
	}
	return path
}

func ask(t *testing.T, requests ...string) []map[string]any {
	t.Helper()
	var out bytes.Buffer
	if err := answerRequests(strings.NewReader(strings.Join(requests, "\n")), &out); err != nil {
		t.Fatal(err)
	}
	var replies []map[string]any
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var reply map[string]any
		if err := decoder.Decode(&reply); err != nil {
			t.Fatal(err)
		}
		replies = append(replies, reply)
	}
	if len(replies) != len(requests) {
		t.Fatalf("%d replies to %d requests: %v", len(replies), len(requests), replies)
	}
	return replies
}

func TestServe(t *testing.T) {
	open := fmt.Sprintf(`{"do": "open", "archive": %q, "recipe": "cifar", "batch": 8}`, fewImages(t, 20))
	replies := ask(t, `{"do": "start", "threads": 1}`, open, `{"do": "epochs", "count": 2}`)
	if got := replies[1]["images"]; got != 20.0 {
		t.Errorf("open: %v, want 20 images", replies[1])
	}
	if rate, ok := replies[2]["images_per_second"].(float64); !ok || rate <= 0 {
		t.Errorf("epochs: %v", replies[2])
	}
}

func TestServe_SaysWhatFails(t *testing.T) {
	path := fewImages(t, 20)
	if err := os.Truncate(path, 5_000); err != nil {
		t.Fatal(err)
	}
	replies := ask(t, fmt.Sprintf(`{"do": "open", "archive": %q, "recipe": "cifar", "batch": 8}`, path), `{"do": "dance"}`)
	for i, want := range []string{"cut short", "no request"} {
		if text, _ := replies[i]["error"].(string); !strings.Contains(text, want) {
			t.Errorf("reply %v, want an error with %q", replies[i], want)
		}
	}
}

func TestProcess_OneCore(t *testing.T) {
	t.Setenv("OMP_NUM_THREADS", "") // nproc would print its value
	c := config{core: lastCore()}
	if out, err := c.process("nproc").Output(); err != nil || strings.TrimSpace(string(out)) != "1" {
		t.Errorf("on core %q nproc prints %s, %v", c.core, out, err)
	}
	if peakMiB() < 1 {
		t.Errorf("the peak of memory is %v MiB", peakMiB())
	}
}
