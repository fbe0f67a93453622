package text_test

import (
	"context"
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

func ExampleSwitch_Generate() {
	const folder = "../../examples/switch/model"
	tokens, err := tokenizer.Open(folder)
	cgotorch.Check(err)
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	defer stream.Close()
	cgotorch.Check(stream.Do(func(x *cgotorch.Exec) error {
		m, err := text.LoadSwitch(x, text.SwitchOptions{}, folder)
		cgotorch.Check(err)
		defer nn.Close(m)
		question := tokens.Encode("What is an expert?")
		ids := cgotorch.FromSlice(x, question, 1, int64(len(question)))
		answers, err := m.Generate(context.Background(), x, ids, nil, text.SwitchGenerateOptions{})
		cgotorch.Check(err)
		fmt.Println(tokens.Decode(answers[0]))
		return nil
	}))
	// Output: An expert is a small network that sees only the tokens that are sent to it.
}

func ExampleEncoder_Rank() {
	const folder = "../../tests/parity/encoders/testdata/cross-bert" // a tiny model of random weights
	e, err := text.OpenEncoder(cgotorch.CPU, folder, text.EncoderOptions{})
	cgotorch.Check(err)
	defer e.Close()
	scores, err := e.Rank(context.Background(), "when does the tide turn?", []string{"A boat.", "The tide turns."})
	cgotorch.Check(err)
	fmt.Printf("%.3f", scores)
	// Output: [0.427 0.402]
}
