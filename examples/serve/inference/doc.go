// Package inference has the messages and the service of the Open Inference Protocol over gRPC. The
// Go files are generated from inference.proto by protoc, with two plugins:
//
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.1
//	protoc --go_out=. --go_opt=paths=source_relative \
//		--go-grpc_out=. --go-grpc_opt=paths=source_relative inference.proto
//
// The package grpcio-tools of PyPI has a protoc, too: python3 -m grpc_tools.protoc -I. and so on.
package inference
