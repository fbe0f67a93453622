package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

const pictureRows = `{"name":"op/add","value":1,"ratio":null,"note":"another row"}
{"name":"parallel/waves/conv/128x14x14/batch=8/branches=2/blocks","value":35.4,"note":""}
{"name":"parallel/waves/conv/128x14x14/batch=8/branches=2/side-by-side","value":181,"ratio":1.65,"note":""}
{"name":"parallel/waves/gemm/128x1024x1024/branches=4/blocks","value":90.8,"note":""}
{"name":"parallel/waves/gemm/128x1024x1024/branches=4/side-by-side","value":232,"ratio":1.65,"note":""}
{"name":"parallel/waves/gemm/128x1024x1024/branches=4/chosen","value":232,"ratio":1.65,"note":""}
{"name":"parallel/block/in-turn/kernel=0","value":3.1,"note":"stream 0 from 0.0 us, 80 blocks: conv<a, b>"}
{"name":"parallel/block/side-by-side/kernel=0","value":3.1,"note":"stream 1 from 2.5 us, 80 blocks: CatArray"}
`

func TestPicture(t *testing.T) {
	points, bars, err := readPicture(strings.NewReader(pictureRows))
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != 2 || points[0] != (point{"conv", 2, 8, 35.4, 1.65}) || points[1] != (point{"gemm", 4, 0, 90.8, 1.65}) {
		t.Errorf("points %+v", points)
	}
	if len(bars) != 2 || bars[1] != (bar{"side-by-side", 1, 2.5, 3.1, "CatArray"}) {
		t.Errorf("bars %+v", bars)
	}
	d := xml.NewDecoder(strings.NewReader(draw(points, bars, 132)))
	circles := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			circles++
		}
	}
	if circles != 3 { // the convolutions' point is in both plots
		t.Errorf("%d points are drawn, want 3", circles)
	}
	for _, wrong := range []string{"", "{", strings.ReplaceAll(pictureRows, "stream 1 from", "stream one"), strings.ReplaceAll(pictureRows, "waves", "wave")} {
		if _, _, err := readPicture(strings.NewReader(wrong)); err == nil {
			t.Errorf("no error for %q", wrong)
		}
	}
}
