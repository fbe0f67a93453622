package tokenizer_test

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

func ExampleTokenizer_Encode() {
	t, err := tokenizer.Open("testdata/t5.json")
	if err != nil {
		panic(err)
	}
	ids := t.Encode("Every  expert\nhas a ﬁne slot.")
	var names []string
	for _, id := range ids {
		name, _ := t.Token(id)
		names = append(names, name)
	}
	fmt.Println(strings.Join(names, " "))
	fmt.Println(t.Decode(ids))
	// Output:
	// ▁E ve r y ▁expert ▁ha s ▁a ▁f i n e ▁slot . </s>
	// Every expert has a fine slot.
}
