package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
	"github.com/streamtorch/streamtorch/examples/serve/inference"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

type (
	inferRequest = inference.ModelInferRequest
	inferInput   = inference.ModelInferRequest_InferInputTensor
	inferOutput  = inference.ModelInferRequest_InferRequestedOutputTensor
	contents     = inference.InferTensorContents
	parameters   = map[string]*inference.InferParameter
)

func whole(n int64) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: n}}
}

// client is a connection to a server.
type client struct {
	inference.GRPCInferenceServiceClient
	conn *grpc.ClientConn
}

func dial(t testing.TB, address string, o ...grpc.DialOption) client {
	t.Helper()
	conn := must.Get(grpc.NewClient(address, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, o...)...))(t)
	t.Cleanup(func() { conn.Close() })
	return client{inference.NewGRPCInferenceServiceClient(conn), conn}
}

// within returns a context for the calls of a test.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func wantCode(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if s := status.Convert(err); s.Code() != code || !strings.Contains(s.Message(), text) {
		t.Errorf("%s: %v, want %v %q", what, err, code, text)
	}
}

// imageRequest is a request for the class of an encoded image.
func imageRequest(image []byte) *inferRequest {
	return &inferRequest{ModelName: "cifar10", Id: "7", Inputs: []*inferInput{{Name: "image", Datatype: "BYTES", Shape: []int64{1},
		Contents: &contents{BytesContents: [][]byte{image}}}},
		Outputs: []*inferOutput{{Name: "probabilities", Parameters: parameters{"classification": whole(1)}}}}
}

// isFrog reports whether the best class of an answer is that of frog.jpg.
func isFrog(a *inference.ModelInferResponse) bool {
	return len(a.GetRawOutputContents()) == 1 && len(a.RawOutputContents[0]) > 4 && bytes.HasSuffix(a.RawOutputContents[0], []byte(":6:frog"))
}

func TestGRPC_Methods(t *testing.T) {
	s := start(t, flags{})
	c, ctx := dial(t, s.grpc), within(t, 20*time.Second)

	a, err := c.ModelInfer(ctx, imageRequest(frog(t)))
	if err != nil || !isFrog(a) || a.Id != "7" || a.ModelName != "cifar10" || a.ModelVersion != "1" || a.Outputs[0].Datatype != "BYTES" || fmt.Sprint(a.Outputs[0].Shape) != "[1 1]" {
		t.Errorf("%v, %v", a, err)
	}
	raw := imageRequest(nil)
	raw.Inputs[0].Contents = nil
	raw.RawInputContents = [][]byte{append(binary.LittleEndian.AppendUint32(nil, uint32(len(frog(t)))), frog(t)...)}
	if a, err := c.ModelInfer(ctx, raw, grpc.UseCompressor(gzip.Name)); err != nil || !isFrog(a) {
		t.Errorf("raw and compressed: %v, %v", a, err)
	}
	pixels := &inferRequest{ModelName: "cifar10", ModelVersion: "1", Inputs: []*inferInput{{Name: "image", Datatype: "UINT8", Shape: []int64{2, 32, 32, 3}}},
		RawInputContents: [][]byte{make([]byte, 2*32*32*3)}}
	if a, err := c.ModelInfer(ctx, pixels); err != nil || a.Outputs[0].Datatype != "FP32" || len(a.RawOutputContents[0]) != 2*10*4 {
		t.Errorf("%v, %v", a, err)
	}

	if a, err := c.ServerLive(ctx, &inference.ServerLiveRequest{}); err != nil || !a.Live {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := c.ServerReady(ctx, &inference.ServerReadyRequest{}); err != nil || !a.Ready {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := c.ServerMetadata(ctx, &inference.ServerMetadataRequest{}); err != nil || a.Name != "streamtorch" || a.Version == "" || strings.HasPrefix(a.Version, "go") || len(a.Extensions) != 4 {
		t.Errorf("%v, %v", a, err)
	}
	for _, m := range []struct {
		name, version string
		ready         bool
	}{{"cifar10", "", true}, {"cifar10", "1", true}, {"cifar10", "2", false}, {"none", "", false}} {
		if a, err := c.ModelReady(ctx, &inference.ModelReadyRequest{Name: m.name, Version: m.version}); err != nil || a.Ready != m.ready {
			t.Errorf("%+v: %v, %v", m, a, err)
		}
	}
	if a, err := c.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "cifar10"}); err != nil || a.Platform != "streamtorch" || fmt.Sprint(a.Versions) != "[1]" ||
		a.Inputs[0].Datatype != "UINT8" || fmt.Sprint(a.Inputs[0].Shape) != "[-1 32 32 3]" || a.Outputs[0].Name != "probabilities" {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := c.ModelConfig(ctx, &inference.ModelConfigRequest{Name: "cifar10"}); err != nil || a.Config.MaxBatchSize != 8 || a.Config.Backend != "streamtorch" ||
		a.Config.Input[0].DataType != inference.DataType_TYPE_UINT8 || fmt.Sprint(a.Config.Input[0].Dims) != "[32 32 3]" ||
		a.Config.Output[0].DataType != inference.DataType_TYPE_FP32 || fmt.Sprint(a.Config.DynamicBatching.PreferredBatchSize) != "[1 2 4 8]" {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := c.ModelStatistics(ctx, &inference.ModelStatisticsRequest{}); err != nil || len(a.ModelStats) != 1 || a.ModelStats[0].InferenceCount != 4 ||
		a.ModelStats[0].ExecutionCount != 3 || a.ModelStats[0].InferenceStats.Success.Count != 3 || a.ModelStats[0].BatchStats[1].BatchSize != 2 {
		t.Errorf("%v, %v", a, err)
	}
	_, text := s.call(t, "GET", s.admin+"/metrics", nil)
	if want := `streamtorch_requests_total{model="cifar10",status="200",version="1"} 3`; !strings.Contains(text, want) {
		t.Errorf("the metrics do not have %s", want)
	}

	probe := grpc_health_v1.NewHealthClient(c.conn)
	for _, service := range []string{"", "inference.GRPCInferenceService"} {
		if a, err := probe.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}); err != nil || a.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%v, %v", a, err)
		}
	}
	_, err = probe.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "none"})
	wantCode(t, "health of another service", err, codes.NotFound, `"none"`)
	ask, err := grpc_reflection_v1.NewServerReflectionClient(c.conn).ServerReflectionInfo(ctx)
	if err == nil {
		err = ask.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "inference.ModelInferRequest"}})
	}
	must.Do(t, err)
	if a, err := ask.Recv(); err != nil || len(a.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("%v, %v", a, err)
	}

	s.answers(t, "POST", s.admin+"/v2/repository/models/cifar10/unload", nil, 200, "")
	_, err = c.ModelInfer(ctx, imageRequest(frog(t)))
	wantCode(t, "an unloaded model", err, codes.Unavailable, "not loaded")
	if a, err := c.ServerReady(ctx, &inference.ServerReadyRequest{}); err != nil || a.Ready {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := c.ModelReady(ctx, &inference.ModelReadyRequest{Name: "cifar10"}); err != nil || a.Ready {
		t.Errorf("%v, %v", a, err)
	}
	if a, err := probe.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil || a.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", a, err)
	}
}

func TestGRPC_Refused(t *testing.T) {
	s := start(t, flags{})
	c, ctx := dial(t, s.grpc), within(t, 20*time.Second)
	image := frog(t)
	for name, r := range map[string]struct {
		change func(r *inferRequest)
		code   codes.Code
		text   string
	}{
		"model":          {func(r *inferRequest) { r.ModelName = "none" }, codes.NotFound, "no such model"},
		"version":        {func(r *inferRequest) { r.ModelVersion = "2" }, codes.NotFound, "no such model"},
		"no input":       {func(r *inferRequest) { r.Inputs = nil }, codes.InvalidArgument, `want ["image"]`},
		"input":          {func(r *inferRequest) { r.Inputs[0].Name = "x" }, codes.InvalidArgument, `["x"], want ["image"]`},
		"a second input": {func(r *inferRequest) { r.Inputs = append(r.Inputs, r.Inputs[0]) }, codes.InvalidArgument, `want ["image"]`},
		"output":         {func(r *inferRequest) { r.Outputs[0].Name = "y" }, codes.InvalidArgument, `the output "y"`},
		"shape":          {func(r *inferRequest) { r.Inputs[0].Shape = []int64{2} }, codes.InvalidArgument, "the shape [2]"},
		"no shape":       {func(r *inferRequest) { r.Inputs[0].Shape = nil }, codes.InvalidArgument, "the shape []"},
		"datatype":       {func(r *inferRequest) { r.Inputs[0].Datatype = "FP32" }, codes.InvalidArgument, "no elements in the field"},
		"no datatype":    {func(r *inferRequest) { r.Inputs[0].Datatype = "" }, codes.InvalidArgument, `is of ""`},
		"no elements":    {func(r *inferRequest) { r.Inputs[0].Contents = nil }, codes.InvalidArgument, "0 elements"},
		"both forms":     {func(r *inferRequest) { r.RawInputContents = [][]byte{{}} }, codes.InvalidArgument, "has contents"},
		"raw of nothing": {func(r *inferRequest) { r.RawInputContents = [][]byte{{}, {}} }, codes.InvalidArgument, "2 raw_input_contents"},
		"raw, cut": {func(r *inferRequest) {
			r.Inputs[0].Contents, r.RawInputContents = nil, [][]byte{{9, 0, 0, 0, 1}}
		}, codes.InvalidArgument, "inside an element"},
		"size": {func(r *inferRequest) {
			r.Inputs[0] = &inferInput{Name: "image", Datatype: "UINT8", Shape: []int64{1, 32, 32, 3}}
			r.RawInputContents = [][]byte{make([]byte, 32*32*3-1)}
		}, codes.InvalidArgument, "has 3071 bytes"},
		"too many entries": {func(r *inferRequest) {
			r.Inputs[0] = &inferInput{Name: "image", Datatype: "UINT8", Shape: []int64{9, 32, 32, 3}}
			r.RawInputContents = [][]byte{make([]byte, 9*32*32*3)}
		}, codes.InvalidArgument, "at most 8"},
		"no image":             {func(r *inferRequest) { r.Inputs[0].Contents.BytesContents[0] = []byte("x") }, codes.InvalidArgument, "not decoded"},
		"shared memory":        {func(r *inferRequest) { r.Inputs[0].Parameters = parameters{"shared_memory_region": whole(1)} }, codes.InvalidArgument, "shared memory"},
		"shared memory behind": {func(r *inferRequest) { r.Outputs[0].Parameters["shared_memory_region"] = whole(1) }, codes.InvalidArgument, "shared memory"},
		"classification":       {func(r *inferRequest) { r.Outputs[0].Parameters["classification"] = whole(-1) }, codes.InvalidArgument, "classification"},
		"timeout":              {func(r *inferRequest) { r.Parameters = parameters{"timeout": whole(1 << 40)} }, codes.InvalidArgument, "timeout"},
		"priority":             {func(r *inferRequest) { r.Parameters = parameters{"priority": {}} }, codes.InvalidArgument, "priority"},
		"too large":            {func(r *inferRequest) { r.RawInputContents = [][]byte{make([]byte, 1<<20)} }, codes.ResourceExhausted, "larger than max"},
		"a long name":          {func(r *inferRequest) { r.Inputs[0].Name = strings.Repeat("ä", 100_000) }, codes.InvalidArgument, "ää"},
	} {
		request := imageRequest(image)
		r.change(request)
		_, err := c.ModelInfer(ctx, request)
		wantCode(t, name, err, r.code, r.text)
		if text := status.Convert(err).Message(); len(text) > mostText+10 || !utf8.ValidString(text) {
			t.Errorf("%s: a message of %d bytes", name, len(text))
		}
	}
	for _, name := range []string{gzip.Name, "deflate"} {
		_, err := c.ModelInfer(ctx, imageRequest(make([]byte, 2<<20)), grpc.UseCompressor(name))
		wantCode(t, "too large when inflated", err, codes.ResourceExhausted, "larger than max")
		if a, err := c.ModelInfer(ctx, imageRequest(image), grpc.UseCompressor(name)); err != nil || !isFrog(a) {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}

	for name, call := range map[string]func() error{
		"ModelMetadata": func() error {
			_, err := c.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "none"})
			return err
		},
		"ModelConfig": func() error { _, err := c.ModelConfig(ctx, &inference.ModelConfigRequest{Name: "none"}); return err },
		"ModelStatistics": func() error {
			_, err := c.ModelStatistics(ctx, &inference.ModelStatisticsRequest{Name: "none"})
			return err
		},
	} {
		wantCode(t, name, call(), codes.NotFound, "no such model")
	}
	for name, call := range map[string]func() error{
		"RepositoryIndex": func() error { _, err := c.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{}); return err },
		"RepositoryModelLoad": func() error {
			_, err := c.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: "cifar10"})
			return err
		},
		"RepositoryModelUnload": func() error {
			_, err := c.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: "cifar10"})
			return err
		},
	} {
		wantCode(t, name, call(), codes.Unimplemented, "on the address of -admin")
	}
	for method, text := range map[string]string{
		"ModelStreamInfer": "ask with ModelInfer", "SystemSharedMemoryStatus": "no memory of its clients", "CudaSharedMemoryRegister": "no memory of its clients",
		"TraceSetting": "no traces", "LogSettings": "no settings", "Other": "no such method",
	} {
		err := c.conn.Invoke(ctx, "/inference.GRPCInferenceService/"+method, &inference.ServerLiveRequest{}, &inference.ServerLiveResponse{})
		wantCode(t, method, err, codes.Unimplemented, text)
	}
	if a, err := c.ModelInfer(ctx, imageRequest(image)); err != nil || !isFrog(a) {
		t.Errorf("after it: %v, %v", a, err)
	}
}

// withToken adds a token to each call.
func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", token)
}

func TestGRPC_Token(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	const token = "0123456789abcdef"
	must.Do(t, os.WriteFile(path, []byte(token), 0o600))
	cert, key := certificate(t)
	s := start(t, flags{token: path, cert: cert, key: key})
	c := dial(t, s.grpc, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))) // the certificate is the test's own
	ctx := within(t, 20*time.Second)
	for given, code := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer 0123456789abcdeg": codes.Unauthenticated, "Bearer " + token: codes.OK} {
		a, err := c.ModelInfer(withToken(ctx, given), imageRequest(frog(t)))
		if wantCode(t, given, err, code, ""); code == codes.OK && !isFrog(a) {
			t.Errorf("%v", a)
		}
	}
	if _, err := c.ServerLive(ctx, &inference.ServerLiveRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := grpc_health_v1.NewHealthClient(c.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	// Others are refused before they send a message, and so is a stream.
	err := begin(t, ctx, c).RecvMsg(&inference.ModelInferResponse{})
	wantCode(t, "before the message", err, codes.Unauthenticated, "token")
	ask, err := grpc_reflection_v1.NewServerReflectionClient(c.conn).ServerReflectionInfo(ctx)
	if err == nil {
		_, err = ask.Recv()
	}
	wantCode(t, "reflection", err, codes.Unauthenticated, "token")
}

// begin begins a ModelInfer whose message is not sent yet.
func begin(t *testing.T, ctx context.Context, c client) grpc.ClientStream {
	t.Helper()
	return must.Get(c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, inference.GRPCInferenceService_ModelInfer_FullMethodName))(t)
}

func TestGRPC_PerClient(t *testing.T) {
	s := start(t, flags{perClient: 2})
	ctx := within(t, 20*time.Second)
	slow, cancel := context.WithCancel(ctx)
	defer cancel()
	for range 2 {
		c := dial(t, s.grpc)
		begin(t, slow, c)
		if _, err := c.ServerLive(ctx, &inference.ServerLiveRequest{}); err != nil { // the server has the call that came before
			t.Fatal(err)
		}
	}
	other := dial(t, s.grpc)
	_, err := other.ModelInfer(ctx, imageRequest(frog(t)))
	wantCode(t, "a third call of one address", err, codes.ResourceExhausted, "-per-client")
	if _, err := other.ServerReady(ctx, &inference.ServerReadyRequest{}); err != nil {
		t.Errorf("a probe: %v", err)
	}
	cancel()
	for began := time.Now(); time.Since(began) < 5*time.Second && err != nil; time.Sleep(5 * time.Millisecond) {
		_, err = other.ModelInfer(ctx, imageRequest(frog(t)))
	}
	if err != nil {
		t.Errorf("after the other calls: %v", err)
	}
}

// A stop answers the calls that have begun.
func TestGRPC_Drains(t *testing.T) {
	s := start(t, flags{})
	ctx := within(t, 20*time.Second)
	c := dial(t, s.grpc)
	stream := begin(t, ctx, c)
	if _, err := c.ServerLive(ctx, &inference.ServerLiveRequest{}); err != nil { // the server has the call that came before
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	for began := time.Now(); time.Since(began) < 4*time.Second; time.Sleep(5 * time.Millisecond) {
		other, err := net.Dial("tcp", s.grpc)
		if err != nil {
			break // new connections are refused
		}
		other.Close()
	}
	must.Check(t, stream.SendMsg(imageRequest(frog(t))))
	stream.CloseSend()
	var a inference.ModelInferResponse
	if err := stream.RecvMsg(&a); err != nil || !isFrog(&a) {
		t.Errorf("%v, %v", &a, err)
	}
	must.Check(t, <-stopped)
}

// inMemory serves models, on a connection that needs no port.
func inMemory(t testing.TB, models *serve.Repository, o oip.Options, more ...grpc.ServerOption) client {
	server, pipe := newGRPC(models, o, more...), bufconn.Listen(1<<16)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(pipe) }()
	t.Cleanup(func() {
		server.Stop()
		must.Check(t, <-ended)
	})
	return dial(t, "passthrough:memory", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
}

// held is a model that adds 1, and that a test can hold.
type held struct {
	models *serve.Repository
	begun  chan struct{} // has a value for each batch that has begun, if hold is not nil
	hold   atomic.Pointer[chan struct{}]
}

func openHeld(t testing.TB) *held {
	if t, test := t.(*testing.T); test { // go test -fuzz itself leaves a goroutine, for signals
		torchtest.CheckLeaks(t)
	}
	h := &held{models: serve.NewRepository(serve.RepositoryOptions{}), begun: make(chan struct{}, 100)}
	t.Cleanup(func() { must.Check(t, h.models.Close()) })
	forward := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		if hold := h.hold.Load(); hold != nil {
			h.begun <- struct{}{}
			<-*hold
		}
		return []*cgotorch.Tensor{x.AddScalar(in[0], 1)}
	}
	err := h.models.Add("held", "1", func() (*serve.Model, error) {
		b, err := serve.New(cgotorch.CPU, forward, serve.Options{Inputs: []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}}}, Outputs: []string{"y"}, BatchSizes: []int{1}, Queue: 1})
		return &serve.Model{Batcher: b, Labels: []string{"a", "b"}}, err
	})
	if err == nil {
		err = h.models.Load(context.Background(), "held", "")
	}
	must.Do(t, err)
	return h
}

func vector(v float32) *inferRequest {
	return &inferRequest{ModelName: "held", Inputs: []*inferInput{{Name: "x", Datatype: "FP32", Shape: []int64{1, 2}, Contents: &contents{Fp32Contents: []float32{v, 0}}}}}
}

func value(a *inference.ModelInferResponse) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(a.RawOutputContents[0]))
}

// Calls end by their deadline, by a cancel, by the parameter timeout, and by a full queue. Observe
// is told of each.
func TestGRPC_Ends(t *testing.T) {
	h := openHeld(t)
	seen := make(chan oip.Observation, 10)
	c := inMemory(t, h.models, oip.Options{Observe: func(o oip.Observation) { seen <- o }})
	ctx := within(t, 20*time.Second)
	wantStatus := func(what string, want ...int) {
		t.Helper()
		select {
		case o := <-seen:
			if o.Model != "held" || !slices.Contains(want, o.Status) || o.Took <= 0 || (o.Err == nil) != (o.Status == 200) {
				t.Errorf("%s: %+v, want %d", what, o, want)
			}
		case <-ctx.Done():
			t.Fatalf("%s: nothing was observed", what)
		}
	}
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { h.hold.Store(nil); close(hold) })
	defer release()
	h.hold.Store(&hold)
	first := make(chan error, 2)
	go func() {
		_, err := c.ModelInfer(ctx, vector(1))
		first <- err
	}()
	<-h.begun
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := c.ModelInfer(short, vector(1))
	wantCode(t, "deadline", err, codes.DeadlineExceeded, "")
	wantStatus("deadline", 504, 499) // the client gives up a little before the server
	timed := vector(1)
	timed.Parameters = parameters{"timeout": whole(20_000)}
	_, err = c.ModelInfer(ctx, timed)
	wantCode(t, "timeout", err, codes.DeadlineExceeded, "")
	wantStatus("timeout", 504)
	gone, leave := context.WithCancel(ctx)
	go func() {
		_, err := c.ModelInfer(gone, vector(1))
		first <- err
	}()
	for h.models.List()[0].Stats.Waiting == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	_, err = c.ModelInfer(ctx, vector(1))
	wantCode(t, "queue", err, codes.ResourceExhausted, "the queue is full")
	wantStatus("queue", 429)
	leave()
	wantCode(t, "cancel", <-first, codes.Canceled, "")
	wantStatus("cancel", 499)
	release()
	must.Check(t, <-first)
	wantStatus("held", 200)
}

// The requests that are being answered have one bound of memory.
func TestGRPC_Memory(t *testing.T) {
	h := openHeld(t)
	c := inMemory(t, h.models, oip.Options{Memory: int64(proto.Size(vector(1))) + bytesOfContents(vector(1)) + 10})
	ctx := within(t, 20*time.Second)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { h.hold.Store(nil); close(hold) })
	defer release()
	h.hold.Store(&hold)
	first := make(chan error, 1)
	go func() {
		_, err := c.ModelInfer(ctx, vector(1))
		first <- err
	}()
	<-h.begun
	_, err := c.ModelInfer(ctx, vector(1))
	wantCode(t, "beside another request", err, codes.ResourceExhausted, "take the memory")
	release()
	must.Check(t, <-first)
	if _, err := c.ModelInfer(ctx, vector(1)); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// The trace context of a request comes back with its answer.
func TestGRPC_Trace(t *testing.T) {
	h := openHeld(t)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	var header metadata.MD
	ctx := metadata.AppendToOutgoingContext(within(t, 20*time.Second), "traceparent", trace)
	if _, err := inMemory(t, h.models, oip.Options{}).ModelInfer(ctx, vector(1), grpc.Header(&header)); err != nil || !slices.Equal(header["traceparent"], []string{trace}) {
		t.Errorf("%v, %v", header, err)
	}
}

// A message that comes too slowly ends with the server's time.
func TestGRPC_SlowMessage(t *testing.T) {
	h := openHeld(t)
	g := guard{most: 1, timeout: 50 * time.Millisecond, clients: map[string]int{}}
	c, ctx := inMemory(t, h.models, oip.Options{}, grpc.InTapHandle(g.tap)), within(t, 20*time.Second)
	err := begin(t, ctx, c).RecvMsg(&inference.ModelInferResponse{})
	wantCode(t, "no message", err, codes.DeadlineExceeded, "")
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(time.Millisecond) {
		if _, err = c.ModelInfer(ctx, vector(1)); err == nil {
			return
		}
	}
	t.Errorf("the slow call still counts: %v", err)
}

func TestGRPC_Control(t *testing.T) {
	h := openHeld(t)
	scans := 0
	c := inMemory(t, h.models, oip.Options{Control: true, Scan: func(context.Context) error { scans++; return nil }})
	ctx := within(t, 20*time.Second)
	index := func(ready bool) string {
		a := must.Get(c.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{Ready: ready}))(t)
		text := ""
		for _, m := range a.Models {
			text += m.Name + " " + m.Version + " " + m.State
		}
		return text
	}
	if text := index(true); text != "held 1 READY" || scans != 1 {
		t.Errorf("%s, %d scans", text, scans)
	}
	if _, err := c.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: "held"}); err != nil {
		t.Error(err)
	}
	if all, ready := index(false), index(true); all != "held 1 UNAVAILABLE" || ready != "" {
		t.Errorf("%s, %s", all, ready)
	}
	_, err := c.ModelInfer(ctx, vector(1))
	wantCode(t, "unloaded", err, codes.Unavailable, "not loaded")
	_, err = c.RepositoryModelUnload(ctx, &inference.RepositoryModelUnloadRequest{ModelName: "held"})
	wantCode(t, "a second unload", err, codes.Unavailable, "not loaded")
	_, err = c.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: "none"})
	wantCode(t, "none", err, codes.NotFound, "no such model")
	_, err = c.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: "held", Parameters: map[string]*inference.ModelRepositoryParameter{"config": nil}})
	wantCode(t, "a configuration", err, codes.InvalidArgument, "neither a configuration nor files")
	if _, err := c.RepositoryModelLoad(ctx, &inference.RepositoryModelLoadRequest{ModelName: "held"}); err != nil {
		t.Error(err)
	}
	if a, err := c.ModelInfer(ctx, vector(4)); err != nil || value(a) != 5 {
		t.Errorf("%v, %v", a, err)
	}
	if m, err := c.ServerMetadata(ctx, &inference.ServerMetadataRequest{}); err != nil || m.Extensions[len(m.Extensions)-1] != "model_repository" {
		t.Errorf("%v, %v", m, err)
	}
}

// Each status of HTTP has a code of its own kind.
func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK}, {serve.ErrNotFound, codes.NotFound}, {serve.ErrNotLoaded, codes.Unavailable}, {serve.ErrQueueFull, codes.ResourceExhausted},
		{cgotorch.ErrClosed, codes.Unavailable}, {cgotorch.ErrOutOfMemory, codes.Unavailable}, {cgotorch.ErrDeviceLost, codes.Unavailable},
		{oip.ErrInvalidArgument, codes.InvalidArgument}, {serve.ErrNotDecoded, codes.InvalidArgument}, {context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded}, {errors.New("any"), codes.Internal},
	} {
		if got := status.Code(rpcError(context.Background(), c.err)); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
	for s := range 600 { // the table has no other statuses
		if code, known := codeOf[s]; known && (code == codes.OK) != (s == 200) {
			t.Errorf("%d: %v", s, code)
		}
	}
}

func TestSetContents(t *testing.T) {
	for datatype, c := range map[string]struct {
		contents *contents
		want     string
	}{
		"BOOL":  {&contents{BoolContents: []bool{true, false}}, "\x01\x00"},
		"INT8":  {&contents{IntContents: []int32{-128, 127}}, "\x80\x7f"},
		"INT16": {&contents{IntContents: []int32{-32768, 32767}}, "\x00\x80\xff\x7f"},
		"INT32": {&contents{IntContents: []int32{math.MinInt32, math.MaxInt32}}, "\x00\x00\x00\x80\xff\xff\xff\x7f"},
		"INT64": {&contents{Int64Contents: []int64{-2}}, "\xfe\xff\xff\xff\xff\xff\xff\xff"},
		"UINT8": {&contents{UintContents: []uint32{0, 255}}, "\x00\xff"},
		"FP32":  {&contents{Fp32Contents: []float32{1}}, "\x00\x00\x80\x3f"},
		"FP64":  {&contents{Fp64Contents: []float64{1}}, "\x00\x00\x00\x00\x00\x00\xf0\x3f"},
		"BYTES": {&contents{BytesContents: [][]byte{[]byte("ab")}}, "\x02\x00\x00\x00ab"},
	} {
		x := oip.Tensor{DataType: datatype}
		if err := setContents(&x, c.contents); err != nil || string(x.Raw()) != c.want {
			t.Errorf("%s: %q, %v, want %q", datatype, x.Raw(), err, c.want)
		}
		torchtest.WantError(t, setContents(&oip.Tensor{DataType: datatype}, &contents{}), oip.ErrInvalidArgument, "no elements")
	}
	for datatype, c := range map[string]*contents{
		"INT8": {IntContents: []int32{128}}, "INT16": {IntContents: []int32{-32769}}, "UINT8": {UintContents: []uint32{256}}, "FP16": {Fp32Contents: []float32{1}}, "UINT64": {Uint64Contents: []uint64{1}},
	} {
		torchtest.WantError(t, setContents(&oip.Tensor{DataType: datatype}, c), oip.ErrInvalidArgument, datatype)
	}
}

// The codec gives what protobuf gives, and copies no raw tensor.
func TestCodec(t *testing.T) {
	request := vector(1)
	request.RawInputContents = [][]byte{bytes.Repeat([]byte{1}, 1024), nil, bytes.Repeat([]byte{2}, 10)}
	text := must.Get(proto.Marshal(request))(t)
	var got inferRequest
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(text[:700]), mem.SliceBuffer(text[700:])}, &got); err != nil || !proto.Equal(&got, request) {
		t.Errorf("%v, %v", &got, err)
	}
	if raw := got.RawInputContents; cap(raw[0]) <= 1024 { // the end of the message is behind the first tensor
		t.Errorf("the tensor is a copy: its capacity is %d", cap(raw[0]))
	}
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{5<<3 | 2, 0}, mostFields+1))}, &got); err == nil { // empty inputs
		t.Error("a message of many fields is taken")
	}
	texts := bytes.Repeat([]byte{8<<3 | 2, 0}, mostParts) // empty bytes_contents
	in := protowire.AppendBytes(protowire.AppendTag(nil, contentsField, protowire.BytesType), texts)
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(protowire.AppendBytes(protowire.AppendTag(nil, inputField, protowire.BytesType), in))}, &got); err == nil {
		t.Error("a message of many texts is taken")
	}
	for _, answer := range []*inference.ModelInferResponse{
		{}, {ModelName: "a", RawOutputContents: [][]byte{bytes.Repeat([]byte{1}, 300), nil, {5}}}, {RawOutputContents: [][]byte{nil}},
	} {
		parts, err := codec{}.Marshal(answer)
		var back inference.ModelInferResponse
		if err == nil {
			err = proto.Unmarshal(parts.Materialize(), &back)
		}
		if err != nil || !proto.Equal(&back, answer) {
			t.Errorf("%v, %v, want %v", &back, err, answer)
		}
		if raw := answer.RawOutputContents; len(raw) == 3 && &parts[1].ReadOnlyData()[0] != &raw[0][0] {
			t.Error("the output is copied")
		}
	}
}

// bare sends and takes messages as they are.
type bare struct{}

func (bare) Name() string { return "proto" }
func (bare) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bare) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// FuzzModelInfer: no message makes the server panic. It is answered, or refused with a code that
// says whose fault it is. The codec takes and refuses what protobuf does.
func FuzzModelInfer(f *testing.F) {
	raw := vector(0)
	raw.Inputs[0].Contents, raw.RawInputContents = nil, [][]byte{make([]byte, 8)}
	classes := vector(2)
	classes.Outputs = []*inferOutput{{Name: "y", Parameters: parameters{"classification": whole(1)}}}
	classes.Parameters = parameters{"priority": whole(1), "timeout": whole(1e6)}
	for _, r := range []*inferRequest{vector(1), raw, classes, imageRequest(nil), {}} {
		text := must.Get(proto.Marshal(r))(f)
		f.Add(text)
	}
	c := inMemory(f, openHeld(f).models, oip.Options{MaxBody: 1 << 16})
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got inferRequest
		wantErr := proto.Unmarshal(text, &want)
		err := codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, &got)
		if (err == nil) != (wantErr == nil) && !strings.Contains(fmt.Sprint(err), "fields") {
			t.Fatalf("the codec says %v, and protobuf %v", err, wantErr)
		}
		if err == nil {
			back := must.Get(proto.Marshal(&got))(t)
			if again, err := proto.Marshal(&want); err != nil || len(again) != len(back) { // NaN is not Equal to itself
				t.Errorf("%v, want %v", &got, &want)
			}
		}
		var answer []byte
		err = c.conn.Invoke(within(t, 10*time.Second), inference.GRPCInferenceService_ModelInfer_FullMethodName, text, &answer, grpc.ForceCodecV2(bare{}))
		s := status.Convert(err)
		switch s.Code() {
		case codes.OK:
			var a inference.ModelInferResponse
			if err := proto.Unmarshal(answer, &a); err != nil || got.ModelName != "held" || a.Id != got.Id || len(a.RawOutputContents) == 0 || len(a.RawOutputContents) != len(a.Outputs) {
				t.Errorf("%v has the answer %v, %v", &got, &a, err)
			}
		case codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted:
		case codes.DeadlineExceeded: // the parameter timeout
			if got.Parameters["timeout"] == nil {
				t.Error(err)
			}
		case codes.Internal:
			if wantErr == nil || !strings.Contains(s.Message(), "unmarshal") {
				t.Error(err)
			}
		default:
			t.Error(err)
		}
	})
}
