package main

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// kind returns the device's name in a row.
func kind(d cgotorch.Device) string {
	if d.IsCUDA() {
		return "cuda"
	}
	return "cpu"
}

// settings names the settings that both sides have in common.
func (c *config) settings() string {
	return fmt.Sprintf("device %v, %d threads, LibTorch %s", c.device, c.threads, cgotorch.LibTorchVersion())
}
