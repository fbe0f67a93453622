package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
	"github.com/streamtorch/streamtorch/examples/serve/inference"
)

// newGRPC returns the protocol over gRPC, with gRPC's health and reflection. A failure has the code
// that codeOf has for the status of HTTP.
func newGRPC(models *serve.Repository, o oip.Options, more ...grpc.ServerOption) *grpc.Server {
	o = o.Complete()
	s := grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(min(o.MaxBody, math.MaxInt32))),
		grpc.ForceServerCodecV2(codec{}),
		grpc.UnknownServiceHandler(unknown),
		grpc.ChainUnaryInterceptor(recovered),
	}, more...)...)
	inference.RegisterGRPCInferenceServiceServer(s, &service{models: models, o: o})
	grpc_health_v1.RegisterHealthServer(s, &health{models: models})
	reflection.Register(s)
	return s
}

// codeOf has the codes of the statuses that oip.StatusOf returns.
var codeOf = map[int]codes.Code{
	http.StatusOK:                    codes.OK,
	http.StatusBadRequest:            codes.InvalidArgument,
	http.StatusNotFound:              codes.NotFound,
	http.StatusRequestEntityTooLarge: codes.ResourceExhausted,
	http.StatusTooManyRequests:       codes.ResourceExhausted,
	499:                              codes.Canceled, // the client has gone
	http.StatusInternalServerError:   codes.Internal,
	http.StatusServiceUnavailable:    codes.Unavailable,
	http.StatusGatewayTimeout:        codes.DeadlineExceeded,
}

// mostText bounds a message, which is a header: many clients take 8 KiB of headers.
const mostText = 2000

// rpcError returns an error as gRPC's.
func rpcError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) > mostText {
		text = text[:mostText] + "…"
	}
	return status.Error(codeOf[oip.StatusOf(ctx, err)], strings.ToValidUTF8(text, "?"))
}

// recovered answers a request that makes the server panic. HTTP does so by itself.
func recovered(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if v := recover(); v != nil {
			slog.Error(fmt.Sprintf("%s: panic: %v\n%s", info.FullMethod, v, debug.Stack()))
			answer, err = nil, status.Error(codes.Internal, "the request made the server panic; its log has the place")
		}
	}()
	return next(ctx, request)
}

// whyNot says why methods of Triton's service are missing.
var whyNot = map[string]string{
	"ModelStreamInfer": "a request has one answer: ask with ModelInfer",
	"TraceSetting":     "the server keeps no traces; its metrics are on the address of -admin",
	"LogSettings":      "the log has no settings",
}

// unknown refuses methods that the service does not have.
func unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	reason := whyNot[path.Base(method)]
	switch {
	case strings.Contains(method, "SharedMemory"):
		reason = "the server opens no memory of its clients: send tensors in the request"
	case reason == "":
		reason = "there is no such method"
	}
	return status.Errorf(codes.Unimplemented, "%s: %s", method, reason)
}

// service answers inference.GRPCInferenceService.
type service struct {
	inference.UnimplementedGRPCInferenceServiceServer
	models *serve.Repository
	o      oip.Options
	taken  atomic.Int64 // bytes of the requests that are being answered
}

func (s *service) ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}

func (s *service) ServerReady(context.Context, *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: oip.Ready(s.models) == nil}, nil
}

// ModelReady answers false for a model that is not known, as Triton does.
func (s *service) ModelReady(_ context.Context, r *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	return &inference.ModelReadyResponse{Ready: s.models.Ready(r.Name, r.Version) == nil}, nil
}

func (s *service) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
	m := oip.ServerMetadataOf(s.o)
	return &inference.ServerMetadataResponse{Name: m.Name, Version: m.Version, Extensions: m.Extensions}, nil
}

func (s *service) ModelMetadata(ctx context.Context, r *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	m, err := oip.MetadataOf(ctx, s.models, r.Name, r.Version)
	if err != nil {
		return nil, rpcError(ctx, err)
	}
	tensors := func(from []oip.TensorMetadata) (list []*inference.ModelMetadataResponse_TensorMetadata) {
		for _, t := range from {
			list = append(list, &inference.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: t.DataType, Shape: t.Shape})
		}
		return list
	}
	return &inference.ModelMetadataResponse{Name: m.Name, Versions: m.Versions, Platform: m.Platform, Inputs: tensors(m.Inputs), Outputs: tensors(m.Outputs)}, nil
}

func (s *service) ModelInfer(ctx context.Context, r *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	began := time.Now()
	if trace := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(trace) > 0 { // W3C's trace context
		if err := grpc.SetHeader(ctx, metadata.Pairs("traceparent", trace[0])); err != nil {
			return nil, err
		}
	}
	var got *oip.Response
	var err error
	request := oip.Request{Model: r.ModelName, Version: r.ModelVersion}
	size := int64(proto.Size(r)) + bytesOfContents(r)
	defer s.taken.Add(-size)
	if s.taken.Add(size) > s.o.Memory {
		err = fmt.Errorf("the other requests that are being answered take the memory: %w", serve.ErrQueueFull)
	} else {
		request, err = requestOf(r)
	}
	if err == nil {
		got, err = oip.Infer(ctx, s.models, request)
	}
	if s.o.Observe != nil {
		o := oip.Observation{Model: request.Model, Version: request.Version, Status: oip.StatusOf(ctx, err), Took: time.Since(began), Err: err}
		if err == nil {
			o.Version = got.Version
		}
		s.o.Observe(o)
	}
	if err != nil {
		return nil, rpcError(ctx, err)
	}
	return responseOf(got), nil
}

func (s *service) ModelConfig(ctx context.Context, r *inference.ModelConfigRequest) (*inference.ModelConfigResponse, error) {
	c, err := oip.ConfigOf(ctx, s.models, r.Name, r.Version)
	if err != nil {
		return nil, rpcError(ctx, err)
	}
	to := &inference.ModelConfig{Name: c.Name, Platform: c.Platform, Backend: c.Backend, MaxBatchSize: int32(c.MaxBatchSize), DynamicBatching: &inference.ModelDynamicBatching{}}
	typeOf := func(t oip.TensorConfig) inference.DataType {
		return inference.DataType(inference.DataType_value[t.DataType])
	}
	for _, t := range c.Input {
		to.Input = append(to.Input, &inference.ModelInput{Name: t.Name, DataType: typeOf(t), Dims: t.Dims})
	}
	for _, t := range c.Output {
		to.Output = append(to.Output, &inference.ModelOutput{Name: t.Name, DataType: typeOf(t), Dims: t.Dims})
	}
	for _, size := range c.DynamicBatching.PreferredBatchSize {
		to.DynamicBatching.PreferredBatchSize = append(to.DynamicBatching.PreferredBatchSize, int32(size))
	}
	return &inference.ModelConfigResponse{Config: to}, nil
}

func (s *service) ModelStatistics(ctx context.Context, r *inference.ModelStatisticsRequest) (*inference.ModelStatisticsResponse, error) {
	list, err := oip.StatisticsOf(s.models, r.Name, r.Version)
	if err != nil {
		return nil, rpcError(ctx, err)
	}
	of := func(s oip.Statistic) *inference.StatisticDuration {
		return &inference.StatisticDuration{Count: uint64(s.Count), Ns: uint64(s.NS)}
	}
	answer := &inference.ModelStatisticsResponse{}
	for _, m := range list {
		i := m.InferenceStats
		to := &inference.ModelStatistics{Name: m.Name, Version: m.Version, InferenceCount: uint64(m.InferenceCount), ExecutionCount: uint64(m.ExecutionCount),
			InferenceStats: &inference.InferStatistics{Success: of(i.Success), Fail: of(i.Fail), Queue: of(i.Queue),
				ComputeInput: of(i.ComputeInput), ComputeInfer: of(i.ComputeInfer), ComputeOutput: of(i.ComputeOutput)}}
		for _, b := range m.BatchStats {
			to.BatchStats = append(to.BatchStats, &inference.InferBatchStatistics{BatchSize: uint64(b.BatchSize), ComputeInfer: of(b.ComputeInfer)})
		}
		answer.ModelStats = append(answer.ModelStats, to)
	}
	return answer, nil
}

// control fails if models are not listed, loaded and unloaded here.
func (s *service) control() error {
	if !s.o.Control {
		return status.Error(codes.Unimplemented, "models are listed, loaded and unloaded over HTTP, on the address of -admin")
	}
	return nil
}

func (s *service) scan(ctx context.Context) error {
	if s.o.Scan == nil {
		return nil
	}
	return s.o.Scan(ctx)
}

func (s *service) RepositoryIndex(ctx context.Context, r *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	if err := s.control(); err != nil {
		return nil, err
	}
	if err := s.scan(ctx); err != nil {
		return nil, rpcError(ctx, err)
	}
	answer := &inference.RepositoryIndexResponse{}
	for _, m := range oip.IndexOf(s.models) {
		if !r.Ready || m.State == "READY" {
			answer.Models = append(answer.Models, &inference.RepositoryIndexResponse_ModelIndex{Name: m.Name, Version: m.Version, State: m.State, Reason: m.Reason})
		}
	}
	return answer, nil
}

func (s *service) RepositoryModelLoad(ctx context.Context, r *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
	if err := s.control(); err != nil {
		return nil, err
	}
	if len(r.Parameters) > 0 {
		return nil, status.Error(codes.InvalidArgument, "a model is loaded from the folder of -models: send neither a configuration nor files")
	}
	err := s.scan(ctx)
	if err == nil {
		err = s.models.Load(ctx, r.ModelName, "")
	}
	return &inference.RepositoryModelLoadResponse{}, rpcError(ctx, err)
}

func (s *service) RepositoryModelUnload(ctx context.Context, r *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
	if err := s.control(); err != nil {
		return nil, err
	}
	return &inference.RepositoryModelUnloadResponse{}, rpcError(ctx, s.models.Unload(ctx, r.ModelName, ""))
}

// health answers grpc.health.v1 for the whole server. It has no Watch: a probe asks again.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	models *serve.Repository
}

func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if r.Service != "" && r.Service != inference.GRPCInferenceService_ServiceDesc.ServiceName {
		return nil, status.Errorf(codes.NotFound, "there is no service %.100q", r.Service)
	}
	answer := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	if oip.Ready(h.models) != nil {
		answer.Status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	return answer, nil
}
