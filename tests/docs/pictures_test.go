package docs

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// picture is a chart in a chapter of the book: a pair of bars for each measured row, ours and the
// peer's.
type picture struct {
	chapter string // of docs/book, without .md; the picture has its name
	title   string
	results string // of bench/results, without .md
	rows    [][2]string
}

var pictures = []picture{
	{"01-install", "make train, files to weights, on two CPU cores", "2026-11-21-cpu", [][2]string{{"train/cifar/cpu", "ResNet-20"}}},
	{"02-tensor", "one call of x.Add, beside the same addition in C++; shorter is better", "2026-11-21-h200", [][2]string{
		{"op/add/cuda", "H200"}, {"op/add/cuda/handwritten", "H200, wrapper by hand"},
	}},
	{"03-train", "training of ResNet-50 from one .tgz of photographs", "2026-11-21-h200", [][2]string{
		{"train/imagenet/cuda", "whole training"},
	}},
	{"04-data", "photographs decoded, cropped and put into batches", "2026-11-21-h200", [][2]string{
		{"loader/photos-1-core/pillow", "1 core"}, {"loader/photos-all-cores/tgz", "16 cores, .tgz"}, {"loader/photos-all-cores/tar", "16 cores, .tar"},
	}},
	{"06-races", "a step of ResNet-18 with the stream checker, and without; shorter is better", "2026-11-21-h200", [][2]string{
		{"check/resnet18/32x32", "32 x 32"}, {"check/resnet18/64x64", "64 x 64"},
	}},
	{"07-capture", "captured training steps in bfloat16", "2026-11-23-h200", [][2]string{
		{"graph/train/resnet50/32/captured-against-compile-graph", "ResNet-50, batch 32"},
		{"graph/train/resnet50/256/captured-against-compile-graph", "ResNet-50, batch 256"},
		{"graph/train/resnet18/64/captured-against-compile-graph", "ResNet-18, batch 64"},
		{"graph/train/mobilenet_v2/64/captured-against-compile-graph", "MobileNetV2, batch 64"},
		{"graph/train/vit_b_16/64/captured-against-compile-graph", "ViT-B/16, batch 64"},
	}},
	{"08-precision", "peak memory of a training step of ResNet-50, batch 32; shorter is better", "2026-11-21-h200", [][2]string{
		{"memory/resnet50/train", "float32"}, {"memory/resnet50/bf16/train", "bfloat16"},
	}},
	{"09-weights", "an eager call with torchvision's weights, batch 1; shorter is better", "2026-11-21-h200", [][2]string{
		{"graph/inference/resnet18/1/eager", "ResNet-18"}, {"graph/inference/resnet50/1/eager", "ResNet-50"},
		{"graph/inference/mobilenet_v2/1/eager", "MobileNetV2"},
	}},
	{"10-own", "max pooling of 3 x 3 and 2 x 2 by kernels of the library's own; shorter is better", "2026-11-21-h200", [][2]string{
		{"pool/max_pool2d/64x112x112/kernel=3/stride=2/batch=8", "64 x 112 x 112, batch 8"},
		{"pool/max_pool2d/480x14x14/kernel=3/stride=1/batch=8", "480 x 14 x 14, batch 8"},
		{"pool/max_pool2d/512x32x32/kernel=2/stride=2/batch=8", "512 x 32 x 32, batch 8"},
	}},
	{"11-serve", "one call of a fused and captured model, batch 1; shorter is better", "2026-11-21-h200", [][2]string{
		{"graph/inference/resnet18/1/fused-against-compile", "ResNet-18"}, {"graph/inference/resnet50/1/fused-against-compile", "ResNet-50"},
	}},
	{"13-ranks", "a training step of ResNet-50 in bfloat16 on two H100, 32 photographs each; shorter is better", "2026-11-25-h100x2", [][2]string{
		{"distributed/resnet50/32/against-ddp-graph", "beside a captured step"}, {"distributed/resnet50/32/against-ddp-eager", "beside an eager step"},
		{"distributed/resnet50/32/against-ddp-compile", "beside torch.compile"},
	}},
}

// measured is a row of a table of results.
type measured struct {
	value, peerValue float64
	unit, peer       string
}

// tableRow is a row with the name of a benchmark, both values, their unit and the peer.
var tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([0-9.]+) \\| ([0-9.]+) \\| ([^|]+) \\| ([^|]+) \\|$")

// read returns the rows of a page of results by name.
func read(t *testing.T, results string) map[string]measured {
	t.Helper()
	text := must.Get(os.ReadFile("../../bench/results/" + results + ".md"))(t)
	rows := map[string]measured{}
	for _, m := range tableRow.FindAllStringSubmatch(string(text), -1) {
		value, err := strconv.ParseFloat(m[2], 64)
		peerValue, peerErr := strconv.ParseFloat(m[3], 64)
		if err := errors.Join(err, peerErr); err != nil {
			t.Fatalf("%s.md: %s: %v", results, m[1], err)
		}
		rows[m[1]] = measured{value, peerValue, m[4], m[5]}
	}
	return rows
}

// draw returns the picture as SVG.
func (p picture) draw(t *testing.T) []byte {
	t.Helper()
	const left, width, bar, row, top = 190, 330, 16, 48, 44
	all, longest := read(t, p.results), 0.0
	rows := make([]measured, len(p.rows))
	for i, r := range p.rows {
		var ok bool
		if rows[i], ok = all[r[0]]; !ok || rows[i].peerValue == 0 {
			t.Fatalf("%s: %s.md has no row %s with a peer", p.chapter, p.results, r[0])
		}
		longest = max(longest, rows[i].value, rows[i].peerValue)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n", top+row*len(rows)+30)
	fmt.Fprintf(&b, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"12\" y=\"26\" font-size=\"15\">%s</text>\n", html.EscapeString(p.title))
	for i, m := range rows {
		y := top + row*i
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left-10, y+bar+4, html.EscapeString(p.rows[i][1]))
		for k, side := range []struct {
			value float64
			who   string
			fill  string
		}{{m.value, "streamtorch", "#3b6fb6"}, {m.peerValue, m.peer, "#b8b8b8"}} {
			long := side.value / longest * width
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left, y+k*(bar+2), long, bar, side.fill)
			fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\">%s %s, %s</text>\n", left+long+6, y+k*(bar+2)+13, figure(side.value), m.unit, html.EscapeString(side.who))
		}
	}
	fmt.Fprintf(&b, "<text x=\"12\" y=\"%d\" fill=\"#666\">bench/results/%s</text>\n</svg>\n", top+row*len(rows)+16, p.results)
	return b.Bytes()
}

// figure writes a number with three digits or more, and commas between thousands.
func figure(v float64) string {
	text := strconv.FormatFloat(v, 'f', max(0, 3-len(strconv.Itoa(int(v)))), 64)
	if whole, _, fraction := strings.Cut(text, "."); !fraction {
		for i := len(whole) - 3; i > 0; i -= 3 {
			whole = whole[:i] + "," + whole[i:]
		}
		return whole
	}
	return text
}

// Each picture of the book shows the figures of its file of results, and its chapter has it.
func TestPictures(t *testing.T) {
	for _, p := range pictures {
		file := filepath.Join("../../docs/book", p.chapter+".svg")
		drawn := p.draw(t)
		if *update {
			must.Do(t, os.WriteFile(file, drawn, 0o644))
		}
		if found, err := os.ReadFile(file); err != nil || !bytes.Equal(found, drawn) {
			t.Errorf("%s.svg is not what the results say (%v): run go test ./tests/docs -run Pictures -update", p.chapter, err)
		}
		if text, err := os.ReadFile(filepath.Join("../../docs/book", p.chapter+".md")); err != nil || !bytes.Contains(text, []byte("]("+p.chapter+".svg)")) {
			t.Errorf("chapter %s does not show its picture (%v)", p.chapter, err)
		}
	}
}
