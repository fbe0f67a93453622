package openai_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/openai"
)

// A reranker answers as Jina's and Cohere's do.
func ExampleNewHandler() {
	e, err := text.OpenEncoder(cgotorch.CPU, "../../../tests/parity/encoders/testdata/cross-bert", text.EncoderOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	h := openai.NewHandler(openai.Options{})
	if err := h.Add(openai.Model{Name: "ranks", Encoder: e}); err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(h)
	defer server.Close()
	body := strings.NewReader(`{"model": "ranks", "query": "who can turn a boat", "documents": ["a fish", "that boat turns"], "top_n": 1, "return_documents": true}`)
	answer, err := server.Client().Post(server.URL+"/v1/rerank", "application/json", body)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	var ranks struct {
		Results []struct {
			Document struct{ Text string }
		}
	}
	err = json.NewDecoder(answer.Body).Decode(&ranks)
	fmt.Println(answer.Status, len(ranks.Results), err)
	// Output: 200 OK 1 <nil>
}
