package main

import (
	"bytes"
	"math"
	"testing"
)

func TestRow_Write(t *testing.T) {
	equal := against("parity", 0, "difference", "allowed", 1e-4, lower, "")
	equal.Ratio = ratioOf(1e-4, 0x1p-24)
	for _, test := range []struct {
		name string
		row  row
		want string
	}{
		{"time", against("op/add/cpu", 1200, "ns", "at::add", 800, lower, "2 threads"),
			`{"name":"op/add/cpu","value":1200,"unit":"ns","peer":"at::add","peer_value":800,"ratio":0.66667,"note":"2 threads"}`},
		{"rate", against("train", 600, "images/s", "PyTorch", 500, higher, ""),
			`{"name":"train","value":600,"unit":"images/s","peer":"PyTorch","peer_value":500,"ratio":1.2,"note":""}`},
		{"time in turns", inTurns("step", sample{2, 4}, "ms", "PyTorch", sample{4, 4}, lower, ""),
			`{"name":"step","value":3,"unit":"ms","peer":"PyTorch","peer_value":4,"ratio":1.5,"note":""}`},
		{"rate in turns", inTurns("train", sample{2, 4}, "images/s", "PyTorch", sample{4, 4}, higher, ""),
			`{"name":"train","value":3,"unit":"images/s","peer":"PyTorch","peer_value":4,"ratio":0.75,"note":""}`},
		{"no peer", alone("flat", -4096, "bytes", "a < b"),
			`{"name":"flat","value":-4096,"unit":"bytes","peer":null,"peer_value":null,"ratio":null,"note":"a < b"}`},
		{"large", alone("flat", 123456789, "bytes", ""),
			`{"name":"flat","value":123456789,"unit":"bytes","peer":null,"peer_value":null,"ratio":null,"note":""}`},
		{"small", alone("difference", 1.23456789e-7, "", ""),
			`{"name":"difference","value":1.2346e-7,"unit":"","peer":null,"peer_value":null,"ratio":null,"note":""}`},
		{"no number", alone("loss", math.NaN(), "", ""),
			`{"name":"loss","value":null,"unit":"","peer":null,"peer_value":null,"ratio":null,"note":""}`},
		{"equal", equal,
			`{"name":"parity","value":0,"unit":"difference","peer":"allowed","peer_value":0.0001,"ratio":1677.7,"note":""}`},
	} {
		var got bytes.Buffer
		if err := test.row.write(&got); err != nil || got.String() != test.want+"\n" {
			t.Errorf("%s:\ngot  %swant %s\n%v", test.name, got.String(), test.want, err)
		}
	}
}
