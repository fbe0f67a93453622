package main

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one is made of
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/streamtorch/streamtorch/examples/serve/inference"
)

// codec is gRPC's codec of protobuf, which does not copy raw tensors. A tensor of a request is a
// part of the received message, and one of an answer is sent as it is.
type codec struct{}

func (codec) Name() string { return "proto" }

// The fields of raw tensors.
const (
	rawInput  = 7
	rawOutput = 6
)

// mostFields bounds the memory of a small message with many empty tensors.
const mostFields = 4096

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*inference.ModelInferRequest)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	text := data.Materialize() // the tensors keep it
	var raw [][]byte
	var others []byte
	fields := 0
	for rest := text; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, rest[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if fields++; fields > mostFields {
			return fmt.Errorf("the request has more than %d fields", mostFields)
		}
		if field == rawInput && kind == protowire.BytesType {
			tensor, _ := protowire.ConsumeBytes(rest[n:])
			raw = append(raw, tensor)
		} else {
			others = append(others, rest[:n+size]...)
		}
		rest = rest[n+size:]
	}
	if err := proto.Unmarshal(others, r); err != nil {
		return err
	}
	r.RawInputContents = raw
	return nil
}

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*inference.ModelInferResponse)
	if !ok {
		return encoding.GetCodecV2("proto").Marshal(v)
	}
	raw := r.RawOutputContents
	r.RawOutputContents = nil
	head, err := proto.Marshal(r)
	r.RawOutputContents = raw
	if err != nil {
		return nil, err
	}
	var parts mem.BufferSlice
	for _, tensor := range raw {
		head = protowire.AppendVarint(protowire.AppendTag(head, rawOutput, protowire.BytesType), uint64(len(tensor)))
		parts = append(parts, mem.SliceBuffer(head), mem.SliceBuffer(tensor))
		head = nil
	}
	if len(head) > 0 {
		parts = append(parts, mem.SliceBuffer(head))
	}
	return parts, nil
}
