package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// kind returns the name that a row has for the device d.
func kind(d cgotorch.Device) string {
	if d.IsCUDA() {
		return "cuda"
	}
	return "cpu"
}

// settings returns a text with the settings that both sides share.
func (c *config) settings() string {
	return fmt.Sprintf("device %v, %d threads, LibTorch %s", c.device, c.threads, cgotorch.LibTorchVersion())
}
