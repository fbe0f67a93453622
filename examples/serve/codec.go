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

const (
	inputField    = 5 // of a request
	contentsField = 5 // of an input
)

// These bound the memory of a small message with many empty tensors or texts.
const (
	mostFields = 4096    // of a request
	mostParts  = 1 << 16 // of its inputs and of their contents
)

// countParts returns the fields of an input and of its contents.
func countParts(input []byte) (n int, err error) {
	for ; len(input) > 0; n++ {
		field, kind, tag := protowire.ConsumeTag(input)
		if tag < 0 {
			return n, protowire.ParseError(tag)
		}
		if field == contentsField && kind == protowire.BytesType {
			inside, size := protowire.ConsumeBytes(input[tag:])
			if size < 0 {
				return n, protowire.ParseError(size)
			}
			for ; len(inside) > 0; n++ {
				_, _, size := protowire.ConsumeField(inside)
				if size < 0 {
					return n, protowire.ParseError(size)
				}
				inside = inside[size:]
			}
		}
		size := protowire.ConsumeFieldValue(field, kind, input[tag:])
		if size < 0 {
			return n, protowire.ParseError(size)
		}
		input = input[tag+size:]
	}
	return n, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*inference.ModelInferRequest)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	text := data.Materialize() // the tensors keep it
	var raw [][]byte
	var others []byte
	fields, parts := 0, 0
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
		if field == inputField && kind == protowire.BytesType {
			input, _ := protowire.ConsumeBytes(rest[n:])
			more, err := countParts(input)
			if err != nil {
				return err
			}
			if parts += more; parts > mostParts {
				return fmt.Errorf("the inputs have more than %d fields and texts", mostParts)
			}
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
