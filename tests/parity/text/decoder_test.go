package text_test

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// decoderCase is a tiny random model of decoder.py, with what transformers makes of it.
type decoderCase struct {
	name, folder    string
	device          cgotorch.Device
	batch, n, vocab int
	ids             []int64   // [batch, n]
	logits          []float32 // [batch, n, vocab]
}

// decoderCases runs decoder.py, for all its models or for some.
func decoderCases(t *testing.T, names ...string) map[string]decoderCase {
	t.Helper()
	python, folder := torchtest.Python(t, "transformers"), t.TempDir()
	out, err := exec.Command(python, append([]string{"decoder.py", folder}, names...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("decoder.py: %v\n%s", err, out)
	}
	cases := map[string]decoderCase{}
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		c := decoderCase{folder: filepath.Join(folder, entry.Name())}
		var shape [3]int
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(c.folder, "shape.json")))(t), &shape))
		c.batch, c.n, c.vocab = shape[0], shape[1], shape[2]
		c.ids = elements[int64](t, filepath.Join(c.folder, "ids.bin"))
		c.logits = elements[float32](t, filepath.Join(c.folder, "logits.bin"))
		cases[entry.Name()] = c
	}
	return cases
}

func elements[T any](t *testing.T, path string) []T {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/int(unsafe.Sizeof(one)))
}

// furthest returns the largest distance of two lists, over the largest number of `want`. It is NaN
// if a number is.
func furthest(got, want []float32) float64 {
	var distance, size float64
	for i := range want {
		distance = max(distance, math.Abs(float64(got[i])-float64(want[i])))
		size = max(size, math.Abs(float64(want[i])))
	}
	return distance / size
}

// Each family has the numbers of transformers: see the functions.
func TestDecoders(t *testing.T) {
	torchtest.NoTF32(t)
	cases := decoderCases(t)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for name, c := range cases {
			c.name, c.device = name, d
			t.Run(name, func(t *testing.T) {
				t.Run("whole", c.whole)
				t.Run("cached", c.cached)
				for _, dtype := range []cgotorch.DType{cgotorch.BFloat16, cgotorch.Float16} {
					t.Run(dtype.String(), func(t *testing.T) { c.narrow(t, dtype) })
				}
			})
		}
	})
}

// open opens the model on the device of the case.
func (c *decoderCase) open(t *testing.T, dtype cgotorch.DType) *text.Model {
	t.Helper()
	m := must.Get(text.Open(c.device, c.folder, text.Options{DType: dtype}))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	return m
}

// whole compares the logits of whole sequences in float32. transformers ran on the CPU.
func (c decoderCase) whole(t *testing.T) {
	d, most := furthest(forward(t, c.open(t, 0), c.batch, c.ids), c.logits), 1e-5
	if c.device.IsCUDA() {
		most = 3e-5 // angles of 1,300 tokens have other last bits there
	}
	t.Logf("the logits differ by %.2g of the largest", d)
	if !(d <= most) {
		t.Errorf("the logits differ by %.2g of the largest, want at most %v", d, most)
	}
}

// narrow compares how near the logits of a narrower dtype are to those of float32: the logits of
// whole sequences, and the log probabilities of the first one token by token.
func (c decoderCase) narrow(t *testing.T, dtype cgotorch.DType) {
	m := c.open(t, dtype)
	low := elements[float32](t, filepath.Join(c.folder, c.kind()+"-"+dtype.String()+".bin"))
	ours, theirs := apart(forward(t, m, c.batch, c.ids), c.logits, c.vocab), apart(low, c.logits, c.vocab)
	t.Logf("ours %.4f of a row's size, transformers' %.4f", ours, theirs)
	if !(ours <= 1.1*theirs) {
		t.Errorf("ours %.4f of a row's size, transformers' %.4f", ours, theirs)
	}
	const prompt = 5
	_, logs := c.walk(t, m, prompt, true)
	var near, far []float64 // of ours and of transformers'
	for i, got := range logs {
		at := prompt + i
		if c.turnsOtherwise(at) {
			continue
		}
		row := func(logits []float32) float64 {
			return logProbability(logits[(at-1)*c.vocab:at*c.vocab], c.ids[at])
		}
		near, far = append(near, math.Abs(got-row(c.logits))), append(far, math.Abs(row(low)-row(c.logits)))
	}
	ours, theirs = median(near), median(far) // a router near a tie may pick another expert
	t.Logf("token by token: ours %.4f, transformers' %.4f", ours, theirs)
	if !(ours <= 2*theirs) { // single tokens scatter more than rows
		t.Errorf("token by token: ours %.4f, transformers' %.4f", ours, theirs)
	}
}

func (c *decoderCase) kind() string {
	if c.device.IsCUDA() {
		return "cuda"
	}
	return "cpu"
}

// turnsOtherwise reports whether the first tokens of a sequence are turned in another way than the
// whole sequence.
func (c *decoderCase) turnsOtherwise(tokens int) bool { return c.name == "phi3-long" && tokens <= 64 }

// walk generates the rest of the first sequence behind a prompt. With a mask the next token of the
// sequence alone is allowed. It returns the whole sequence, and the log probabilities behind the
// prompt.
func (c *decoderCase) walk(t *testing.T, m *text.Model, prompt int, masked bool) (ids []int64, logs []float64) {
	t.Helper()
	talk := m.NewConversation()
	defer talk.Close()
	o := text.GenerateOptions{Greedy: true, MaxTokens: c.n - prompt, IgnoreEnd: true}
	if masked {
		o.Mask = func(answer []int64, allowed []bool) { allowed[c.ids[prompt+len(answer)]] = true }
	}
	ids = slices.Clone(c.ids[:prompt])
	for token, err := range talk.Generate(t.Context(), ids, o) {
		must.Do(t, err)
		ids, logs = append(ids, token.ID), append(logs, token.LogProb)
	}
	if len(ids) != c.n {
		t.Errorf("masked=%v: %d tokens after %d, want %d", masked, len(logs), prompt, c.n-prompt)
	}
	return ids, logs
}

// cached compares token by token, through the cache, in float32.
func (c decoderCase) cached(t *testing.T) {
	m := c.open(t, 0)
	for _, test := range []struct {
		masked bool
		prompt int
	}{{true, 5}, {true, c.n - 3}, {false, max(5, c.n-40)}} {
		ids, logs := c.walk(t, m, test.prompt, test.masked)
		whole := c.logits
		if !test.masked {
			whole = forward(t, m, 1, ids)
		}
		furthest := 0.0
		for i, got := range logs {
			at := test.prompt + i
			if c.turnsOtherwise(at) {
				continue
			}
			want := logProbability(whole[(at-1)*c.vocab:at*c.vocab], ids[at])
			furthest = max(furthest, math.Abs(got-want)/max(1, math.Abs(want)))
		}
		t.Logf("masked=%v: the log probabilities of %d tokens after %d differ by %.2g", test.masked, len(logs), test.prompt, furthest)
		if !(furthest <= 2e-5) {
			t.Errorf("masked=%v: the log probabilities of %d tokens after %d differ by %.2g", test.masked, len(logs), test.prompt, furthest)
		}
	}
}

// forward returns the logits of whole sequences.
func forward(t *testing.T, m *text.Model, batch int, ids []int64) (logits []float32) {
	t.Helper()
	must.Do(t, cgotorch.DefaultStream(m.Weights[0].Tensor.Device()).Do(func(x *cgotorch.Exec) error {
		x = x.NoGrad()
		logits = cgotorch.ToSlice[float32](x, m.Forward(x, cgotorch.FromSlice(x, ids, int64(batch), int64(len(ids)/batch))))
		return nil
	}))
	return logits
}

// logProbability returns the log probability of a token.
func logProbability(logits []float32, token int64) float64 {
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - float64(logits[token]))
	}
	return -math.Log(sum)
}

// apart returns how far the rows of two lists are apart, as shares of the lengths of the rows of
// `want`. It is the median of all rows, because a router near a tie may pick another expert.
func apart(got, want []float32, width int) float64 {
	var shares []float64
	for row := 0; row < len(want); row += width {
		var distance, size float64
		for i, w := range want[row : row+width] {
			d := float64(got[row+i]) - float64(w)
			distance, size = distance+d*d, size+float64(w)*float64(w)
		}
		shares = append(shares, math.Sqrt(distance/size))
	}
	return median(shares)
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
