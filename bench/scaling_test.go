package main

import (
	"os"
	"strings"
	"testing"
)

func TestScalings(t *testing.T) {
	const rows = `{"name":"distributed/resnet50/256/scaling","value":40,"unit":"ms","peer":"ours, one GPU","peer_value":32,"ratio":0.8,"note":"2 rounds; 2 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/scaling","value":40,"unit":"ms","peer":"ours, one GPU","peer_value":36,"ratio":0.9,"note":"2 rounds; 8 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/scaling-ddp-compile","value":64,"unit":"ms","peer":"PyTorch, one GPU","peer_value":60,"ratio":0.9,"note":"2 rounds; 8 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/all-reduce/1MiB","value":64,"unit":"us","peer":null,"peer_value":null,"ratio":null,"note":"2 rounds; 8 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/fed","value":0.998,"unit":"share","peer":null,"peer_value":null,"ratio":null,"note":"one .tgz; 8 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/hidden/rank0/all","value":0.9,"unit":"share","peer":null,"peer_value":null,"ratio":null,"note":"trace; 8 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/hidden/rank1/all","value":0.95,"unit":"share","peer":null,"peer_value":null,"ratio":null,"note":"trace; 8 ranks; device cuda:0"}
{"name":"distributed/resnet50/256/sharded","value":50,"unit":"ms","peer":"Adam","peer_value":40,"ratio":0.8,"note":"2 rounds; 2 ranks; device cuda:0"}
{"name":"distributed/resnet50/32/scaling-plain","value":10,"unit":"ms","peer":"ours, one GPU","peer_value":10,"ratio":1,"note":"2 rounds; 2 ranks; device cuda:0"}
`
	all, err := readScalings(strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	writeScalingTable(&table, all)
	for _, want := range []string{
		"## resnet50, batch 256 a GPU", "| step | 1 GPU | 2 GPUs | 8 GPUs |\n| --- | --- | --- | --- |\n",
		"| ours | 7111 | 12800, 0.900 | 51200, 0.900 |\n", // the rate of one GPU is that of the run with eight
		"| PyTorch, DDP with torch.compile | | | 32000 |\n",
		"| ours, LibTorch's kernels | 3200 | 6400, 1.000 |\n",
		"| fed from one .tgz, of the resident rate | | | 0.998 |\n",
		"| hidden of the reductions, on the worst rank | | | 0.900 |\n",
		"| sharded Adam, of the rate with Adam on each rank | | 0.800 | |\n",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	if _, err := readScalings(strings.NewReader("no JSON\n")); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("got %v", err)
	}
}

// The rows that were taken on two GPUs have a table and a picture.
func TestScalings_Results(t *testing.T) {
	rows, err := os.Open("results/2026-11-26-h100x2.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all, err := readScalings(rows)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d batch sizes, %v", len(all), err)
	}
	var table, picture strings.Builder
	writeScalingTable(&table, all)
	writeScalingPicture(&picture, all)
	if want := "| ours | 7477 | 14809, 0.990 |"; !strings.Contains(table.String(), want) {
		t.Errorf("no %q in\n%s", want, table.String())
	}
	if n := strings.Count(picture.String(), "<polyline"); n != 11 {
		t.Errorf("the picture has %d lines", n)
	}
}
