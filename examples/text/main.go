// Text trains a classifier of short reviews: word vectors, an LSTM over them, and a linear layer.
// The reviews differ in length. A batch is padded, and its lengths say where each review ends. The
// reviews are JSON lines. Without an argument it makes such a file itself.
//
//	go run ./examples/text [FILE.jsonl]
package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/prefetcher"
)

const words, width = 1 << 12, 32 // token 0 is padding; the token of a word is its hash

// tokenize is the Map of the loader. It runs on the loader's workers.
func tokenize(s data.Sample) (data.Sample, error) {
	tokens := []int64{}
	for _, word := range strings.Fields(strings.ToLower(s["text"].(string))) {
		h := fnv.New32()
		h.Write([]byte(word))
		tokens = append(tokens, 1+int64(h.Sum32()%(words-1)))
	}
	return data.Sample{"tokens": tokens, "label": s["label"]}, nil
}

// classifier reads sequences of tokens.
type classifier struct {
	Vectors *nn.Embedding
	LSTM    *nn.LSTM
	Head    *nn.Linear
}

func newClassifier(x *cgotorch.Exec) (*classifier, error) {
	return &classifier{
		Vectors: nn.NewEmbedding(x, words, width, nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(0)}), // the vector of padding is zero
		LSTM:    nn.NewLSTM(x, width, width, nn.RNNOptions{BatchFirst: true}),
		Head:    nn.NewLinear(x, width, 2, nn.LinearOptions{}),
	}, nil
}

// forward maps tokens [N, L] to logits [N, 2]. The LSTM leaves out the padding: `last` is its state
// behind the last token of each review.
func (c *classifier) forward(x *cgotorch.Exec, tokens *cgotorch.Tensor, lengths []int64) *cgotorch.Tensor {
	_, last, _ := c.LSTM.ForwardLengths(x, c.Vectors.Forward(x, tokens), lengths, nil, nil)
	return c.Head.Forward(x, x.Select(last, 0, 0))
}

func main() {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("reviews-%d.jsonl", os.Getpid()))
	defer os.Remove(path)
	cgotorch.Check(os.WriteFile(path, reviews(), 0o600))
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	label := data.Field{Name: "label", DType: cgotorch.Int64}
	lines := cgotorch.Must(data.OpenJSONLines(path, data.JSONLinesOptions{Fields: []data.Field{{Name: "text", Text: true}, label}}))
	tokens := data.Field{Name: "tokens", DType: cgotorch.Int64, Shape: []int64{data.Variable}} // padded with 0, see data.Pad
	loader := cgotorch.Must(data.NewStreamLoader(lines, data.Options{BatchSize: 32, Shuffle: true, Map: tokenize, Fields: []data.Field{tokens, label}}))

	device := cgotorch.Must(cgotorch.ParseDevice("auto"))
	ahead := cgotorch.Must(prefetcher.NewTensors(loader, device, prefetcher.TensorOptions{}))

	stream := cgotorch.DefaultStream(device)
	model := cgotorch.Must(cgotorch.DoValue(stream, newClassifier))
	opt := cgotorch.Must(optim.NewAdam(optim.AdamOptions{LR: 0.003}, optim.Group{Params: nn.Parameters(model)}))
	cgotorch.Must(cgotorch.DoEach(stream, ahead.Epoch(context.Background()), func(x *cgotorch.Exec, batch *prefetcher.TensorBatch) error {
		in := batch.Use(x) // the lengths are on the host, where the LSTM wants them
		loss := nn.CrossEntropy(x, model.forward(x, in["tokens"], batch.Lengths("tokens")), in["label"], nn.CrossEntropyOptions{})
		opt.Minimize(x, loss)
		if batch.Index%20 == 0 {
			fmt.Printf("batch %d: loss %.4f\n", batch.Index, x.Item(loss)) // x.Item waits for the device
		}
		return nil
	}))
} // the end of the process frees everything; a longer program closes opt, model, ahead and loader

// reviews returns 4,000 made-up reviews as JSON lines.
func reviews() []byte {
	sides := [2][]string{{"dull", "slow", "broken", "noisy"}, {"bright", "quick", "solid", "quiet"}}
	var text strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&text, `{"label": %d, "text": "The thing is%s"}`+"\n", i%2, strings.Repeat(" so "+sides[i%2][rand.IntN(4)], 1+rand.IntN(8)))
	}
	return []byte(text.String())
}
