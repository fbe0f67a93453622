package openai_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve/openai"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

func Example() {
	encoder, err := text.OpenEncoder(cgotorch.CPU, "../../../tests/parity/encoders/testdata/cross-bert", text.EncoderOptions{})
	cgotorch.Check(err)
	defer encoder.Close()
	handler := openai.NewHandler(openai.Options{Token: "secret"})
	cgotorch.Check(handler.Add(openai.Model{Name: "ranks", Encoder: encoder}))
	server := httptest.NewServer(handler) // a program: http.ListenAndServe("localhost:8080", handler)
	defer server.Close()

	request, err := http.NewRequest("POST", server.URL+"/v1/rerank", strings.NewReader(`{"model": "ranks", "query": "a", "documents": ["b"], "top_k": 1}`))
	cgotorch.Check(err)
	request.Header.Set("Authorization", "Bearer secret")
	response, err := http.DefaultClient.Do(request)
	cgotorch.Check(err)
	defer response.Body.Close()
	var answer struct{ Error struct{ Type, Message string } }
	cgotorch.Check(json.NewDecoder(response.Body).Decode(&answer))
	fmt.Println(response.Status, answer.Error.Type)
	fmt.Println(answer.Error.Message)
	// Output:
	// 400 Bad Request invalid_request_error
	// top_k: there is no such field here: leave it out
}
