package book

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/openai"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

func Example_retrieval() {
	const encoders = "../../tests/parity/encoders/testdata/"
	device, embedder, reranker, decoder := cgotorch.CPU, encoders+"bert", encoders+"cross-bert", "testdata/chat"
	documents := []string{"A stream is a queue of work.", "An event marks a place in a stream.", "A graph is work that was recorded.", "A slab is page-locked memory."}
	// cut: open
	embed, err := text.OpenEncoder(device, embedder, text.EncoderOptions{})
	cgotorch.Check(err)
	defer embed.Close()
	rank, err := text.OpenEncoder(device, reranker, text.EncoderOptions{})
	cgotorch.Check(err)
	defer rank.Close()
	m, err := text.Open(device, decoder, text.Options{RandomWeights: 2}) // without RandomWeights: the folder's weights
	cgotorch.Check(err)
	defer m.Close()
	batcher, err := m.NewBatcher(text.BatcherOptions{})
	cgotorch.Check(err)
	defer batcher.Close()
	// end: open

	// cut: answer
	vectors, err := embed.Embed(context.Background(), documents) // of length 1, so a dot product compares them
	cgotorch.Check(err)
	answer := func(w http.ResponseWriter, r *http.Request) error {
		question := r.FormValue("question")
		query, err := embed.Embed(r.Context(), []string{question})
		if err != nil {
			return err
		}
		type found struct {
			text  string
			score float32
		}
		near := make([]found, len(documents))
		for i, v := range vectors {
			near[i].text = documents[i]
			for k := range v {
				near[i].score += v[k] * query[0][k]
			}
		}
		best := func(a, b found) int { return cmp.Compare(b.score, a.score) }
		slices.SortStableFunc(near, best)
		near = near[:3] // of any number of documents
		scores, err := rank.Rank(r.Context(), question, []string{near[0].text, near[1].text, near[2].text})
		if err != nil {
			return err
		}
		for i := range near {
			near[i].score = scores[i]
		}
		slices.SortStableFunc(near, best)
		messages := []tokenizer.Message{{Role: "user", Content: "Answer from this text: " + near[0].text + "\n" + question}}
		for token, err := range batcher.Chat(r.Context(), messages, tokenizer.ChatOptions{}, text.GenerateOptions{MaxTokens: 20}) {
			if err != nil {
				return err
			}
			io.WriteString(w, token.Text) // an error means that the client has left, and ends r.Context
			http.NewResponseController(w).Flush()
		}
		return nil
	}
	// end: answer

	// cut: routes
	models := openai.NewHandler(openai.Options{})
	for _, one := range []openai.Model{{Name: "embed", Encoder: embed}, {Name: "rank", Encoder: rank}, {Name: "chat", Decoder: m, Batcher: batcher}} {
		cgotorch.Check(models.Add(one))
	}
	routes := http.NewServeMux()
	routes.Handle("/v1/", models) // for clients of OpenAI
	routes.HandleFunc("POST /answer", func(w http.ResponseWriter, r *http.Request) {
		if err := answer(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := httptest.NewServer(routes) // a program: http.ListenAndServe("localhost:8080", routes)
	// end: routes
	defer server.Close()
	response, err := http.PostForm(server.URL+"/answer", url.Values{"question": {"What is a stream?"}})
	cgotorch.Check(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	cgotorch.Check(err)
	list, err := http.Get(server.URL + "/v1/models")
	cgotorch.Check(err)
	defer list.Body.Close()
	var known struct{ Data []struct{ ID string } }
	cgotorch.Check(json.NewDecoder(list.Body).Decode(&known))
	fmt.Println(response.Status, len(body) > 0, known.Data)

	// Output:
	// 200 OK true [{chat} {embed} {rank}]
}
