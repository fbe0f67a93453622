//go:build loader

package main

import (
	"context"
	"flag"
)

var withLibTorch []command

// The command bench measures the loader alone.
const hasSteps = false

type stepping struct{}

func (stepping) flags(*flag.FlagSet)              {}
func (stepping) model() string                    { return "" }
func (*benching) steps(ctx context.Context) error { return nil }
