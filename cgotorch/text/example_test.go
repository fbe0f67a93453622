package text_test

import (
	"context"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

func ExampleSwitch_Generate() {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	err := stream.Do(func(x *cgotorch.Exec) error {
		config := text.DefaultSwitchConfig() // a small model with new weights; LoadSwitch loads trained ones
		config.VocabSize, config.DModel, config.DFF, config.NumLayers, config.NumDecoderLayers = 100, 16, 32, 2, 2
		config.NumSparseEncoderLayers, config.NumSparseDecoderLayers, config.EOSTokenID = 1, 1, nil
		m := text.NewSwitch(x, config, text.SwitchOptions{})
		defer nn.Close(m)
		ids := cgotorch.FromSlice(x, []int64{21, 34, 55, 1}, 1, 4)
		answers, err := m.Generate(context.Background(), x, ids, nil, text.SwitchGenerateOptions{MaxNewTokens: 5})
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
