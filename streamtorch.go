// Package streamtorch stands for the module: it has no names, and a program imports the packages
// below it. It imports the packages of a training, so that go get of the module is enough for them.
//
//	go get github.com/streamtorch/streamtorch
//	go run github.com/streamtorch/streamtorch/cmd/streamtorch@v0.1.0 install
//
// Package cgotorch has tensors, streams and operators. Package imageloader reads archives of
// images. Package prefetcher copies the next batch to the device while the last one is used.
package streamtorch

import (
	_ "github.com/streamtorch/streamtorch/cgotorch"
	_ "github.com/streamtorch/streamtorch/prefetcher"
)
