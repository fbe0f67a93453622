// Text trains a classifier of short reviews: a bag of word vectors, then two layers. The reviews
// are JSON lines. Without an argument it makes such a file itself.
//
//	go run ./examples/text [FILE.jsonl]
package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"log"
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

func main() {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("reviews-%d.jsonl", os.Getpid()))
	defer os.Remove(path)
	err := os.WriteFile(path, reviews(), 0o600)
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	if err == nil {
		err = train(context.Background(), path)
	}
	if err != nil {
		log.Print(err)
	}
}

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

func train(ctx context.Context, path string) error {
	label := data.Field{Name: "label", DType: cgotorch.Int64}
	lines, err := data.OpenJSONLines(path, data.JSONLinesOptions{Fields: []data.Field{{Name: "text", Text: true}, label}})
	if err != nil {
		return err
	}
	tokens := data.Field{Name: "tokens", DType: cgotorch.Int64, Shape: []int64{data.Variable}} // padded with 0
	loader, err := data.NewStreamLoader(lines, data.Options{BatchSize: 32, Shuffle: true, Map: tokenize, Fields: []data.Field{tokens, label}})
	if err != nil {
		return err
	}
	defer loader.Close()
	ahead, err := prefetcher.NewTensors(loader, cgotorch.CPU, prefetcher.TensorOptions{})
	if err != nil {
		return err
	}
	defer ahead.Close()

	stream := cgotorch.DefaultStream(cgotorch.CPU)
	var vectors *nn.Embedding
	var model *nn.Sequential
	var opt *optim.Optimizer
	err = stream.Do(func(x *cgotorch.Exec) error {
		vectors = nn.NewEmbedding(x, words, width, nn.EmbeddingOptions{PaddingIndex: cgotorch.Set(0)}) // the vector of padding is zero
		model = nn.NewSequential(nn.NewLinear(x, width, width, nn.LinearOptions{}), &nn.ReLU{}, nn.NewLinear(x, width, 2, nn.LinearOptions{}))
		opt, err = optim.NewAdam(optim.AdamOptions{LR: 0.003}, optim.Group{Params: append(nn.Parameters(vectors), nn.Parameters(model)...)})
		return err
	})
	if err != nil {
		return err
	}
	defer nn.Close(vectors)
	defer nn.Close(model)
	defer opt.Close()

	for batch, err := range ahead.Epoch(ctx) {
		if err != nil {
			return err
		}
		err = stream.Do(func(x *cgotorch.Exec) error {
			in := batch.Use(x)
			opt.ZeroGrad()
			sum := x.SumDim(vectors.Forward(x, in["tokens"]), []int64{1}, cgotorch.SumOptions{})
			mean := x.Div(sum, x.Unsqueeze(in["tokens_length"], 1)) // padding does not count
			loss := nn.CrossEntropy(x, model.Forward(x, mean), in["label"], nn.CrossEntropyOptions{})
			x.Backward(loss)
			opt.Step(x)
			if batch.Index%20 == 0 {
				fmt.Printf("batch %d: loss %.4f\n", batch.Index, x.Item(loss)) // x.Item waits for the device
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reviews returns 4,000 made-up reviews as JSON lines.
func reviews() []byte {
	sides := [2][]string{{"dull", "slow", "broken", "noisy"}, {"bright", "quick", "solid", "quiet"}}
	var text strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&text, `{"label": %d, "text": "The thing is%s"}`+"\n", i%2, strings.Repeat(" so "+sides[i%2][rand.IntN(4)], 1+rand.IntN(8)))
	}
	return []byte(text.String())
}
