package oip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// soak is a server of one model, whose weight is its version: the answer to v is v + weight. The
// weight changes under load, by new versions and by Update.
type soak struct {
	t        *testing.T
	models   *serve.Repository
	weight   *cgotorch.Tensor // of the last version
	url      string
	client   *http.Client
	memories atomic.Int64 // out of memory is still to be injected so many times

	begun, published atomic.Int64 // the last weight that is being loaded, and that is loaded
	left             atomic.Int64 // requests to send
	answered, gone   atomic.Int64 // requests with an answer, and those whose client has gone
}

// TestSoak sends requests of 512 clients, of which 30 % give up. At the same time the model is
// swapped 100 times, batches run out of memory, and other clients send bad bodies, do not read, or
// close half of their connection. STREAMTORCH_SOAK is the number of requests.
func TestSoak(t *testing.T) {
	requests := int64(10_000)
	if text := os.Getenv("STREAMTORCH_SOAK"); text != "" {
		var err error
		if requests, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	torchtest.CheckLeaks(t)
	s := &soak{t: t, models: serve.NewRepository(serve.RepositoryOptions{})}
	defer s.models.Close()
	server := httptest.NewUnstartedServer(NewHandler(s.models, Options{MaxBody: 64 << 10}))
	server.Config.ReadTimeout, server.Config.WriteTimeout = time.Minute, time.Minute
	server.Start()
	defer server.Close()
	s.url = server.URL
	transport := &http.Transport{MaxIdleConnsPerHost: 512, DialContext: dialAbrupt}
	defer transport.CloseIdleConnections()
	s.client = &http.Client{Transport: transport, Timeout: time.Minute}
	s.swap()
	s.left.Store(requests)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var clients, others sync.WaitGroup
	for i := range 512 {
		clients.Add(1)
		go func() {
			defer clients.Done()
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for s.left.Add(-1) >= 0 {
				s.ask(random)
			}
		}()
	}
	for i := range 4 {
		others.Add(3)
		random := rand.New(rand.NewPCG(2, uint64(i)))
		go s.repeat(ctx, &others, func() { s.bad(random) })
		go s.repeat(ctx, &others, s.slowReader)
		go s.repeat(ctx, &others, s.halfClosed)
	}

	// The swaps are spread over the requests.
	const swaps = 100
	var before leaktest.Usage
	for i := range int64(swaps) {
		for s.left.Load() > requests-(i+1)*requests/(swaps+1) {
			time.Sleep(time.Millisecond)
		}
		s.memories.Add(1)
		if i%2 == 0 {
			s.swap()
		} else {
			s.update()
		}
		if i == swaps/5 {
			before = leaktest.Used(t)
		}
	}
	after := leaktest.Used(t)
	clients.Wait()
	cancel()
	others.Wait()
	t.Logf("%d requests were answered, and the clients of %d had gone; %d batches ran out of memory; at 20 %% %v, at the end %v",
		s.answered.Load(), s.gone.Load(), swaps-s.memories.Load(), before, after)
	if s.answered.Load()+s.gone.Load() != requests {
		t.Errorf("%d + %d of %d requests ended", s.answered.Load(), s.gone.Load(), requests)
	}
	if s.memories.Load() > swaps*3/4 { // a Batcher runs out of memory once, and lives for two swaps
		t.Errorf("%d of %d times no batch ran out of memory", s.memories.Load(), swaps)
	}
	if leaktest.RaceDetector() { // its own memory grows with the goroutines that there were
		after.Resident = 0
	}
	if after.Threads > before.Threads+8 || after.Files > before.Files+600 || after.Goroutines > before.Goroutines+2500 || after.Resident > before.Resident+128<<20 {
		t.Errorf("grew from %v to %v", before, after)
	}
}

// dialAbrupt makes connections that Close resets, as those of a client that dies.
func dialAbrupt(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		err = c.(*net.TCPConn).SetLinger(0)
	}
	return c, err
}

// repeat calls fn until ctx ends.
func (s *soak) repeat(ctx context.Context, wait *sync.WaitGroup, fn func()) {
	defer wait.Done()
	for ctx.Err() == nil {
		fn()
		time.Sleep(5 * time.Millisecond)
	}
}

// noMemory reports whether a batch is to run out of memory. On a GPU, where graphs do not call the
// function, only the batches of serve.New ask.
func (s *soak) noMemory() bool {
	for {
		n := s.memories.Load()
		if n <= 0 {
			return false
		}
		if s.memories.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// load returns a model with this weight.
func (s *soak) load(weight int64) (*serve.Model, error) {
	var w *cgotorch.Tensor
	err := cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
		w = x.Keep(x.Full(cgotorch.Float32, float64(weight), 2))
		return nil
	})
	if err != nil {
		return nil, err
	}
	b, err := serve.New(torchtest.Device(), func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		if n := in[0].Shape()[0]; n > 4 && n < 32 && s.noMemory() {
			x.Fail("forward", &cgotorch.Error{Op: "forward", Kind: cgotorch.ErrOutOfMemory, Message: "injected"})
		}
		return []*cgotorch.Tensor{x.Add(in[0], w)}
	}, serve.Options{Inputs: []serve.Spec{{Name: "v", DType: cgotorch.Float32, Shape: []int64{2}}}, Queue: 4096})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	s.weight = w
	return &serve.Model{Batcher: b, Weights: 8, Free: w.Close}, nil
}

// swap loads a new version, and unloads the one before.
func (s *soak) swap() {
	weight := s.begun.Add(1)
	version := fmt.Sprint(weight)
	ctx := context.Background()
	err := s.models.Add("m", version, func() (*serve.Model, error) { return s.load(weight) })
	if err == nil {
		err = s.models.Load(ctx, "m", version)
	}
	s.published.Store(weight)
	for _, m := range s.models.List() {
		if err == nil && m.Loaded && m.Version != version {
			err = s.models.Unload(ctx, "m", m.Version)
		}
	}
	if err != nil {
		s.t.Error(err)
	}
}

// update gives the version in use a new weight.
func (s *soak) update() {
	weight := s.begun.Add(1)
	err := s.models.Use(context.Background(), "m", "", func(m *serve.Model) error {
		return m.Update(context.Background(), func(x *cgotorch.Exec) error {
			cgotorch.CopyFrom(x, s.weight, []float32{float32(weight), float32(weight)})
			return nil
		})
	})
	if err != nil {
		s.t.Error(err)
	}
	s.published.Store(weight)
}

const infer = "/v2/models/m/infer"

// ask sends a request of one to three entries. In 30 of 100 cases its client soon gives up.
func (s *soak) ask(random *rand.Rand) {
	ctx := context.Background()
	givesUp := random.IntN(100) < 30
	if givesUp {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(int(10*time.Millisecond))))
		defer cancel()
	}
	values := make([]float32, 2*(1+random.IntN(3)))
	for i := range values {
		values[i] = float32(random.IntN(1000)) * 1000
	}
	text, err := json.Marshal(values)
	if err != nil {
		s.t.Error(err)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", s.url+infer,
		strings.NewReader(fmt.Sprintf(`{"inputs":[{"name":"v","datatype":"FP32","shape":[%d,2],"data":%s}]}`, len(values)/2, text)))
	if err != nil {
		s.t.Error(err)
		return
	}
	least := s.published.Load()
	status, body, err := s.send(r)
	if err != nil && givesUp && ctx.Err() != nil {
		s.gone.Add(1)
		return
	}
	var answer struct {
		Version string `json:"model_version"`
		Outputs []struct{ Data []float32 }
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(body, &answer) != nil || len(answer.Outputs) != 1 || len(answer.Outputs[0].Data) != len(values) {
		s.t.Errorf("%d %s, %v", status, body, err)
		return
	}
	most := s.begun.Load()
	weight := answer.Outputs[0].Data[0] - values[0]
	for i, v := range answer.Outputs[0].Data {
		if v != values[i]+weight || int64(weight) < least || int64(weight) > most {
			s.t.Errorf("%v gave %s; the weight was %d to %d", values, body, least, most)
			return
		}
	}
	if version, err := strconv.ParseInt(answer.Version, 10, 64); err != nil || version > int64(weight) {
		s.t.Errorf("version %q has the weight %v", answer.Version, weight)
	}
	s.answered.Add(1)
}

func (s *soak) send(r *http.Request) (status int, body []byte, err error) {
	answer, err := s.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// bad sends a body that is refused.
func (s *soak) bad(random *rand.Rand) {
	const good = `{"inputs":[{"name":"v","datatype":"FP32","shape":[1,2],"data":[1,2]}]}`
	cases := []struct {
		path, body string
		status     int
	}{
		{infer, good[:random.IntN(len(good))], 400},
		{infer, strings.Replace(good, "[1,2]", "[1,3]", 1), 400},
		{infer, strings.Replace(good, "FP32", "INT8", 1), 400},
		{infer, strings.Replace(good, `"v"`, `"w"`, 1), 400},
		{infer, strings.Replace(good, "[1,2]}", "[1,null]}", 1), 400},
		{infer, strings.Repeat(" ", 64<<10) + good, 413},
		{"/v2/models/none/infer", good, 404},
		{"/v2/models/m/versions/0/infer", good, 404},
	}
	c := cases[random.IntN(len(cases))]
	r, err := http.NewRequest("POST", s.url+c.path, strings.NewReader(c.body))
	if err != nil {
		s.t.Error(err)
		return
	}
	if status, body, err := s.send(r); err != nil || status != c.status {
		s.t.Errorf("%.200s: %d %s, %v, want %d", c.body, status, body, err, c.status)
	}
}

// connect opens a connection and sends a request of some entries, n times.
func (s *soak) connect(n int) *net.TCPConn {
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Error(err)
		return nil
	}
	body := fmt.Sprintf(`{"inputs":[{"name":"v","datatype":"FP32","shape":[32,2],"data":[%s1]}]}`, strings.Repeat("0.123456,", 63))
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", infer, len(body), body)
	c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // the server does not read on while nobody reads its answers
	_, _ = io.Copy(c, strings.NewReader(strings.Repeat(request, n)))
	return c.(*net.TCPConn)
}

// slowReader sends many requests on one connection, and never reads.
func (s *soak) slowReader() {
	if c := s.connect(2000); c != nil {
		c.Close()
	}
}

// halfClosed sends a request, and closes its half of the connection before the answer.
func (s *soak) halfClosed() {
	c := s.connect(1)
	if c == nil {
		return
	}
	defer c.Close()
	c.CloseWrite()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Error("a half-closed connection gets no answer and is not closed")
	}
}
