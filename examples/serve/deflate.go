package main

import (
	"compress/zlib"
	"io"

	"google.golang.org/grpc/encoding"
)

// deflate is gRPC's second compression: DEFLATE in the format of zlib. grpc-go has gzip alone.
type deflate struct{}

func init() { encoding.RegisterCompressor(deflate{}) } // grpc-go allows it at the start of a program alone

func (deflate) Name() string { return "deflate" }

func (deflate) Compress(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil }

func (deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }
