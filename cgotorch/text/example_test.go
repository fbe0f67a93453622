package text_test

import (
	"context"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// Experts that the host calls when it has read which ones are wanted, for instance because their weights are on their way.
func ExampleDispatch() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		tokens, ids := cgotorch.FromSlice(x, []float32{1, 2, 3, 4}, 4, 1), cgotorch.FromSlice(x, []int64{2, 0, 2, 1})
		out := text.Dispatch(x, tokens, cgotorch.ToSlice[int64](x, ids), text.Order(x, ids), func(expert int64, rows *cgotorch.Tensor) *cgotorch.Tensor {
			fmt.Println("expert", expert, "has", cgotorch.ToSlice[float32](x, rows))
			return x.MulScalar(rows, 10*expert)
		})
		fmt.Println(cgotorch.ToSlice[float32](x, out))
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// expert 0 has [2]
	// expert 1 has [4]
	// expert 2 has [1 3]
	// [20 0 60 40]
}

func ExampleSwitch_Generate() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		config := text.DefaultSwitchConfig() // a small model, with new weights: see LoadSwitch
		config.VocabSize, config.DModel, config.DFF, config.NumLayers, config.NumDecoderLayers = 100, 16, 32, 2, 2
		config.NumSparseEncoderLayers, config.NumSparseDecoderLayers, config.EOSTokenID = 1, 1, nil
		m := text.NewSwitch(x, config, text.SwitchOptions{})
		defer nn.Close(m)
		ids := cgotorch.FromSlice(x, []int64{21, 34, 55, 1}, 1, 4)
		answers, err := m.Generate(context.Background(), x, ids, nil, text.GenerateOptions{MaxNewTokens: 5})
		if err != nil {
			return err
		}
		fmt.Println(len(answers), "answer of", len(answers[0]), "tokens")
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: 1 answer of 5 tokens
}
