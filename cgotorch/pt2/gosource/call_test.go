package gosource

import (
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func TestFullRange(t *testing.T) {
	of := func(values ...any) (args []goArg) {
		for _, v := range values {
			args = append(args, goArg{constant: v})
		}
		return args
	}
	size := goArg{value: &goValue{kind: goInt}}
	for _, c := range []struct {
		op   string
		args []goArg
		want []goArg
	}{
		{"aten::arange", of(int64(5)), of(int64(0), int64(5), int64(1), cgotorch.Int64)},
		{"aten::arange", of(int64(5), nil, nil, nil, false), of(int64(0), int64(5), int64(1), cgotorch.Int64, nil, nil, false)},
		{"aten::arange", of(1.5), of(int64(0), 1.5, int64(1), cgotorch.Default)},
		{"aten::arange", of(int64(4), cgotorch.Float32), of(int64(0), int64(4), int64(1), cgotorch.Float32)},
		{"aten::arange", []goArg{size}, append(append(of(int64(0)), size), of(int64(1), cgotorch.Int64)...)},
		{"aten::arange.start", of(int64(1), int64(4), cgotorch.Default), of(int64(1), int64(4), int64(1), cgotorch.Int64)},
		{"aten::arange.start_step", of(int64(0), int64(6), int64(2)), of(int64(0), int64(6), int64(2), cgotorch.Int64)},
		{"aten::arange.start_step", of(int64(0), int64(6), 0.5, nil), of(int64(0), int64(6), 0.5, nil)},
		{"aten::arange.start_step", of(int64(0)), nil},
		{"aten::arange.out", of(int64(0), nil), nil},
	} {
		got, ok := fullRange(c.op, c.args)
		if ok != (c.want != nil) || fmt.Sprintf("%v", got) != fmt.Sprintf("%v", c.want) {
			t.Errorf("%s%v is %v, %v; want %v", c.op, c.args, got, ok, c.want)
		}
	}
}
