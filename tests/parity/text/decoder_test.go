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

// Each family has the numbers of transformers: see the three functions.
func TestDecoders(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, c := range decoderCases(t) {
		c.name = name
		t.Run(name, func(t *testing.T) {
			t.Run("whole", c.whole)
			t.Run("narrow", c.narrow)
			t.Run("cached", c.cached)
		})
	}
}

// whole compares the logits of whole sequences in float32.
func (c decoderCase) whole(t *testing.T) {
	m := must.Get(text.Open(cgotorch.CPU, c.folder, text.Options{}))(t)
	defer m.Close()
	d := furthest(forward(t, m, c.batch, c.ids), c.logits)
	t.Logf("the logits differ by %.2g of the largest", d)
	if !(d <= 1e-5) {
		t.Errorf("the logits differ by %.2g of the largest, want at most 1e-5", d)
	}
}

// narrow compares how near the logits of narrower dtypes are to those of float32.
func (c decoderCase) narrow(t *testing.T) {
	for _, dtype := range []cgotorch.DType{cgotorch.BFloat16, cgotorch.Float16} {
		m := must.Get(text.Open(cgotorch.CPU, c.folder, text.Options{DType: dtype}))(t)
		defer m.Close()
		ours := apart(forward(t, m, c.batch, c.ids), c.logits, c.vocab)
		theirs := apart(elements[float32](t, filepath.Join(c.folder, dtype.String()+".bin")), c.logits, c.vocab)
		t.Logf("%v: ours %.4f of a row's size, transformers' %.4f", dtype, ours, theirs)
		if !(ours <= 1.1*theirs) {
			t.Errorf("%v: ours %.4f of a row's size, transformers' %.4f", dtype, ours, theirs)
		}
	}
}

// cached compares token by token, through the cache. With a mask the next token of the sequence
// alone is allowed, so that the logits are those of transformers for the whole sequence.
func (c decoderCase) cached(t *testing.T) {
	m := must.Get(text.Open(cgotorch.CPU, c.folder, text.Options{}))(t)
	defer m.Close()
	talk := m.NewConversation()
	defer talk.Close()
	ids := c.ids[:c.n]
	for _, test := range []struct {
		masked bool
		prompt int
	}{{true, 5}, {true, c.n - 3}, {false, max(5, c.n-40)}} {
		masked, prompt := test.masked, test.prompt
		o := text.GenerateOptions{Greedy: true, MaxTokens: c.n - prompt, IgnoreEnd: true}
		if masked {
			o.Mask = func(answer []int64, allowed []bool) { allowed[ids[prompt+len(answer)]] = true }
		}
		answer := slices.Clone(ids[:prompt])
		var logs []float64
		for token, err := range talk.Generate(t.Context(), ids[:prompt], o) {
			must.Do(t, err)
			answer, logs = append(answer, token.ID), append(logs, token.LogProb)
		}
		whole := c.logits
		if !masked {
			whole = forward(t, m, 1, answer)
		}
		furthest := 0.0
		for i, got := range logs {
			at := prompt + i
			if c.name == "phi3-long" && at <= 64 {
				continue // the shorter sequence is turned in another way than the whole one
			}
			want := logProbability(whole[(at-1)*c.vocab:at*c.vocab], answer[at])
			furthest = max(furthest, math.Abs(got-want)/max(1, math.Abs(want)))
		}
		t.Logf("masked=%v: the log probabilities of %d tokens after %d differ by %.2g", masked, len(logs), prompt, furthest)
		if len(logs) != c.n-prompt || !(furthest <= 2e-5) {
			t.Errorf("masked=%v: the log probabilities of %d tokens after %d differ by %.2g", masked, len(logs), prompt, furthest)
		}
	}
}

func forward(t *testing.T, m *text.Model, batch int, ids []int64) (logits []float32) {
	t.Helper()
	must.Do(t, cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
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
	slices.Sort(shares)
	return shares[len(shares)/2]
}
