package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A request of a higher priority goes before those that wait, and not before an Update.
func TestWithPriority(t *testing.T) {
	var order []float32
	gate, entered := make(chan struct{}, 100), make(chan struct{}, 100)
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		entered <- struct{}{}
		<-gate
		order = append(order, cgotorch.ToSlice[float32](x, in[0])[0])
		return plusOne(x, in...)
	}, prepared(gate, Options{BatchSizes: []int{1}}))
	<-entered
	<-entered
	order = nil
	var results []chan error
	send := func(priority int, v float32) {
		results = append(results, predict(WithPriority(context.Background(), priority), b, v))
		waitFor(t, b, max(len(results)-1, 0))
	}
	send(0, 1)
	<-entered
	send(0, 2)
	send(-1, 3)
	send(5, 4)
	send(5, 5)
	updated := make(chan error)
	go func() {
		updated <- b.Update(context.Background(), func(*cgotorch.Exec) error { order = append(order, -1); return nil })
	}()
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		queued := slices.ContainsFunc(b.queue, isUpdate)
		b.mu.Unlock()
		if queued {
			break
		}
	}
	send(9, 6)
	for range results {
		gate <- struct{}{}
	}
	for _, r := range append(results, updated) {
		must.Check(t, <-r)
	}
	if want := []float32{1, 4, 5, 2, 3, -1, 6}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// prepared lets the two calls of New through a gate.
func prepared(gate chan struct{}, o Options) Options {
	gate <- struct{}{}
	gate <- struct{}{}
	return o
}

// Requests of several lengths are padded to Options.Lengths, and batched by them.
func TestBatcher_Lengths(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		var mu sync.Mutex
		seen := map[int64]bool{}
		b := open(t, d, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			mu.Lock()
			seen[in[0].Shape()[2]] = true
			mu.Unlock()
			return []*tensor{x.SumDim(in[0], []int64{1, 2}, cgotorch.SumOptions{}), x.AddScalar(in[0], 1)}
		}, Options{Inputs: []Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2, -1}}}, Outputs: []string{"sum"}, Lengths: []int64{16, 4}, BatchSizes: []int{1, 4}})
		out := b.Outputs()
		if len(out) != 2 || out[0].Name != "sum" || len(out[0].Shape) != 0 || out[1].Name != "output1" || !slices.Equal(out[1].Shape, []int64{2, -1}) {
			t.Errorf("outputs %v", out)
		}
		together.Run(8, func(c int) {
			for i := range 16 {
				n := int64(1 + (c+i)%16)
				data := make([]float32, 2*n)
				sum := float32(0)
				for k := range data {
					data[k] = float32(c*k + i)
					sum += data[k]
				}
				got, err := b.Predict(context.Background(), Of(data, 1, 2, n))
				if err != nil {
					t.Error(err)
					continue
				}
				sums, _ := Elements[float32](got[0])
				rows, _ := Elements[float32](got[1])
				length := 4
				if n > 4 {
					length = 16
				}
				if sums[0] != sum || got[1].Shape[2] != int64(length) || rows[length] != data[n]+1 || rows[length-1] != data[min(int(n), length)-1]+1 && int(n) == length {
					t.Errorf("length %d: sum %v want %v, rows %v of %v", n, sums, sum, rows, data)
				}
			}
		})
		if len(seen) != 2 || !seen[4] || !seen[16] {
			t.Errorf("computed lengths %v", seen)
		}
		_, err := b.Predict(context.Background(), Of(make([]float32, 34), 1, 2, 17))
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "the length 17")
	})
}

// A request with an element that the function must not see is refused, wherever the element stands.
func TestPredict_Elements(t *testing.T) {
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor { return in }, Options{BatchSizes: []int{1}, Inputs: []Spec{
		{Name: "mask", DType: cgotorch.Bool, Shape: []int64{11}}, {Name: "ids", DType: cgotorch.Int64, Shape: []int64{2}, Most: 9}, {Name: "free", DType: cgotorch.Int64, Shape: []int64{1}}}})
	ask := func(mask []byte, ids ...int64) error {
		_, err := b.Predict(context.Background(), Array{DType: cgotorch.Bool, Shape: []int64{1, 11}, Data: mask}, Of(ids, 1, 2), Of([]int64{-1}, 1, 1))
		return err
	}
	must.Check(t, ask(bytes.Repeat([]byte{1}, 11), 0, 9))
	for at := range 11 {
		mask := make([]byte, 11)
		mask[at] = 2
		torchtest.WantError(t, ask(mask, 0, 9), cgotorch.ErrInvalidArgument, `input "mask" is bool and has a byte that is neither 0 nor 1`)
	}
	torchtest.WantError(t, ask(make([]byte, 11), 9, 10), cgotorch.ErrInvalidArgument, `input "ids" has the element 10, want 0 to 9`)
	torchtest.WantError(t, ask(make([]byte, 11), -1, 9), cgotorch.ErrInvalidArgument, `input "ids" has the element -1, want 0 to 9`)
}

// Bounds are for each dtype of integers, and for no other.
func TestSpec_Bounds(t *testing.T) {
	check := func(a Array) error {
		_, _, err := Spec{Name: "x", DType: a.DType, Least: -2, Most: 100}.entries(a)
		return err
	}
	for dtype, a := range map[cgotorch.DType][2]Array{
		cgotorch.Uint8: {Of([]uint8{0, 100}), Of([]uint8{0, 101})}, cgotorch.Int8: {Of([]int8{-2, 100}), Of([]int8{0, -3})}, cgotorch.Int16: {Of([]int16{-2, 100}), Of([]int16{0, 101})},
		cgotorch.Int32: {Of([]int32{-2, 100}), Of([]int32{0, -3})}, cgotorch.Int64: {Of([]int64{-2, 100}), Of([]int64{0, 1 << 32})},
	} {
		if err := check(a[0]); err != nil {
			t.Errorf("%v: %v", dtype, err)
		}
		torchtest.WantError(t, check(a[1]), cgotorch.ErrInvalidArgument, "want -2 to 100")
	}
	for _, s := range []Spec{{DType: cgotorch.Float32, Most: 1}, {DType: cgotorch.Int64, Least: 1}, {Decoder: &sized{width: 4}, Most: 1}} {
		if _, err := s.complete(); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

// sized decodes PNG files of one size with image/png.
type sized struct {
	width int
	mu    sync.Mutex
	calls int
	most  int
	hold  chan struct{}
}

func (*sized) Workers() int                          { return 2 }
func (s *sized) Size() (height, width, channels int) { return 1, s.width, 3 }

func (s *sized) DecodeFiles(files [][]byte, to []byte) error {
	s.mu.Lock()
	s.calls++
	s.most = max(s.most, s.calls)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.calls--
		s.mu.Unlock()
	}()
	if s.hold != nil {
		<-s.hold
	}
	img, err := png.Decode(bytes.NewReader(files[0]))
	if err != nil {
		return err
	}
	for x := range s.width {
		r, g, b, _ := img.At(x, 0).RGBA()
		copy(to[3*x:], []byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)})
	}
	return nil
}

func pngOf(t *testing.T, grey byte) []byte {
	img := image.NewGray(image.Rect(0, 0, 4, 1))
	for i := range img.Pix {
		img.Pix[i] = grey
	}
	var out bytes.Buffer
	must.Do(t, png.Encode(&out, img))
	return out.Bytes()
}

// Files are decoded, by no more goroutines than the Decoder has use for, and their memory is given
// back.
func TestPredict_Files(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, device cgotorch.Device) {
		d := &sized{width: 4}
		b := open(t, device, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			return []*tensor{x.SumDim(x.To(in[0], cgotorch.Float32), []int64{1, 2, 3}, cgotorch.SumOptions{})}
		}, Options{Inputs: []Spec{{Name: "image", Decoder: d}}, BatchSizes: []int{1, 8}})
		if in := b.Inputs()[0]; in.DType != cgotorch.Uint8 || !slices.Equal(in.Shape, []int64{1, 4, 3}) {
			t.Errorf("input %v", in)
		}
		together.Run(16, func(c int) {
			for i := range 20 {
				grey := byte(16*c + i%16)
				in := Array{Files: [][]byte{pngOf(t, grey), pngOf(t, 1)}}
				if i%5 == 4 {
					in.Files[1] = []byte("no picture")
				}
				out, err := b.Predict(context.Background(), in)
				if i%5 == 4 {
					if !errors.Is(err, ErrNotDecoded) || out != nil {
						t.Error("a file that is no picture was computed")
					}
					continue
				}
				if err != nil {
					t.Error(err)
					continue
				}
				if sums, _ := Elements[float32](out[0]); !slices.Equal(sums, []float32{12 * float32(grey), 12}) {
					t.Errorf("sums %v of %d", sums, grey)
				}
			}
		})
		if d.most > 2*d.Workers() {
			t.Errorf("%d calls of the Decoder at a time", d.most)
		}
		b.mu.Lock()
		s := b.stats
		b.mu.Unlock()
		if free, made := len(b.decoders[0].free), entriesOfSlab*len(b.decoders[0].slabs); free != made || s.Failed != 0 || b.waiting != 0 {
			t.Errorf("%d of %d entries are free, %+v", free, made, s)
		}
		// Pixels are taken beside files.
		if _, err := b.Predict(context.Background(), Of(make([]byte, 12), 1, 1, 4, 3)); err != nil {
			t.Error(err)
		}
		_, err := b.Predict(context.Background(), Array{Files: [][]byte{}})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, `input "image" has 0 encoded files`)
	})
}

// A request that ends before its turn is never decoded, and one that waits counts for the queue.
func TestPredict_FilesThatWait(t *testing.T) {
	d := &sized{width: 4, hold: make(chan struct{})}
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		return []*tensor{x.To(in[0], cgotorch.Float32)}
	}, Options{Inputs: []Spec{{Name: "image", Decoder: d}}, BatchSizes: []int{1}, Queue: 5})
	ctx, cancel := context.WithCancel(context.Background())
	results := make(chan error, 6)
	for i := range 6 {
		c := context.Background()
		if i == 4 { // the Decoder is called for four files
			c = ctx
		}
		go func() {
			_, err := b.Predict(c, Array{Files: [][]byte{pngOf(t, 1)}})
			results <- err
		}()
		waitFor(t, b, min(i+1, 5))
	}
	if err := <-results; !errors.Is(err, ErrQueueFull) {
		t.Errorf("the sixth request: %v", err)
	}
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled request: %v", err)
	}
	close(d.hold)
	for range 4 {
		must.Check(t, <-results)
	}
}

// panicking is a Decoder that panics.
type panicking struct{ *sized }

func (panicking) DecodeFiles([][]byte, []byte) error { panic("no decoder") }

// A panic of the Decoder is raised in Predict, and its memory and turn are given back.
func TestPredict_DecoderPanics(t *testing.T) {
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		return []*tensor{x.To(in[0], cgotorch.Float32)}
	}, Options{Inputs: []Spec{{Name: "image", Decoder: panicking{&sized{width: 4}}}}, BatchSizes: []int{2}})
	for i := range 20 {
		func() {
			defer func() {
				if p, ok := recover().(*panics.Panic); !ok || p.Value != "no decoder" {
					t.Errorf("got %v", p)
				}
			}()
			b.Predict(context.Background(), Array{Files: [][]byte{{1}, {2}}[:1+i%2]})
		}()
	}
	if d := b.decoders[0]; len(d.free) != entriesOfSlab*len(d.slabs) || len(d.turn) != 0 || b.waiting != 0 {
		t.Errorf("%d entries are free, %d turns are taken, %d entries wait", len(d.free), len(d.turn), b.waiting)
	}
}

// Sizes that were given up come back for large requests too.
func TestPredict_SizesComeBack(t *testing.T) {
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{x.AddScalar(in[0], 1)} },
		Options{Inputs: vector, BatchSizes: []int{1, 4}})
	b.mu.Lock()
	b.policy.drop(form{size: 4}, time.Now().Add(-time.Minute))
	b.mu.Unlock()
	if _, err := b.Predict(context.Background(), Of(make([]float32, 12), 4, 3)); err != nil {
		t.Error(err)
	}
}

// Unpad cuts the dimensions of results that are as long as the padded request, and no others.
func TestBatcher_Unpad(t *testing.T) {
	fn := func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		t := in[0] // [n, length, 2]
		half := x.Slice(t, 1, cgotorch.SliceOptions{Step: 2})
		return []*tensor{x.AddScalar(t, 1), x.MatMul(t, x.Transpose(t, 1, 2)), x.SumDim(t, []int64{1, 2}, cgotorch.SumOptions{}),
			half, x.Cat([]*tensor{t, t}, 1), x.To(x.Select(t, 2, 0), cgotorch.Int64), x.Narrow(t, 1, 0, 4)}
	}
	one := Spec{Name: "x", DType: cgotorch.Float32, Shape: []int64{-1, 2}}
	for _, c := range []struct {
		lengths []int64
		keep    bool
		n       int64
		want    string
	}{
		{[]int64{4, 8}, false, 3, "[1 3 2] [1 3 3] [1] [1 2 2] [1 8 2] [1 3] [1 4 2]"},
		{[]int64{4, 8}, false, 4, "[1 4 2] [1 4 4] [1] [1 2 2] [1 8 2] [1 4] [1 4 2]"},
		{[]int64{4, 8}, false, 5, "[1 5 2] [1 5 5] [1] [1 4 2] [1 16 2] [1 5] [1 4 2]"},
		{[]int64{4, 8}, true, 5, "[1 8 2] [1 8 8] [1] [1 4 2] [1 16 2] [1 8] [1 4 2]"},
		{[]int64{8}, false, 5, "[1 8 2] [1 8 8] [1] [1 4 2] [1 16 2] [1 8] [1 4 2]"},
	} {
		b := open(t, cgotorch.CPU, fn, Options{Inputs: []Spec{one}, Lengths: c.lengths, Unpad: !c.keep, BatchSizes: []int{1, 2, 4}})
		data := make([]float32, 2*c.n)
		for i := range data {
			data[i] = float32(i + 1)
		}
		out := must.Get(b.Predict(context.Background(), Of(data, 1, c.n, 2)))(t)
		var shapes []string
		for _, a := range out {
			shapes = append(shapes, fmt.Sprint(a.Shape))
			if int64(len(a.Data)) != product(a.Shape)*int64(a.DType.Size()) {
				t.Errorf("%d bytes for %v", len(a.Data), a.Shape)
			}
		}
		if got := strings.Join(shapes, " "); got != c.want {
			t.Errorf("%v, %d: %s, want %s", c.lengths, c.n, got, c.want)
		}
		rows, _ := Elements[float32](out[0])
		for i, v := range rows[:2*c.n] {
			if v != data[i]+1 {
				t.Errorf("element %d is %v", i, v)
			}
		}
		products, _ := Elements[float32](out[1])
		size := out[1].Shape[2]
		for i := range c.n {
			for j := range c.n {
				if want := data[2*i]*data[2*j] + data[2*i+1]*data[2*j+1]; products[i*size+j] != want {
					t.Errorf("product %d, %d is %v, want %v", i, j, products[i*size+j], want)
				}
			}
		}
	}
	// Two sizes in one request: neither is the length of a result.
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{in[0], in[1]} },
		Options{Inputs: []Spec{one, {Name: "y", DType: cgotorch.Float32, Shape: []int64{-1}}}, Lengths: []int64{4, 8}, Unpad: true})
	out, err := b.Predict(context.Background(), Of(make([]float32, 6), 1, 3, 2), Of(make([]float32, 2), 1, 2))
	if err != nil || fmt.Sprint(out[0].Shape, out[1].Shape) != "[1 4 2] [1 4]" {
		t.Errorf("%+v, %v", out, err)
	}
}
