package tokenizer_test

import (
	"fmt"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

func ExampleTokenizer_Chat() {
	t, err := tokenizer.Open("testdata/t5.json")
	if err != nil {
		panic(err)
	}
	chat := []tokenizer.Message{
		{Role: "system", Content: "Be brief."},
		{Role: "user", Content: "Where do the experts live?"},
	}
	// The folder of a chat model has a template. This one has none.
	const template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}<assistant>"
	text, err := t.Chat(chat, tokenizer.ChatOptions{Template: template})
	fmt.Println(text, err)
	// Output:
	// <system>Be brief.</system>
	// <user>Where do the experts live?</user>
	// <assistant> <nil>
}

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
