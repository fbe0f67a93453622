package main

import (
	"google.golang.org/grpc"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

func newGRPC(_ *serve.Repository, _ oip.Options, more ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(more...)
}
