package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// Vectors are those of the Encoder, as numbers and in base64, of texts and of tokens. A shorter one
// has the length 1.
func TestEmbeddings(t *testing.T) {
	m := encoderOf(t, "bert", "bert")
	s := serveModels(t, Options{}, m)
	texts := []string{"the tide turns", "a"}
	want, err := m.Encoder.Embed(t.Context(), texts)
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := m.Encoder.Tokens(texts[0])
	second, _ := m.Encoder.Tokens(texts[1])
	both, _ := json.Marshal([][]int64{ids, second})
	one, _ := json.Marshal(ids)
	type response struct {
		Object string
		Data   []struct {
			Object    string
			Index     int
			Embedding json.RawMessage
		}
		Model string
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	for body, count := range map[string]int{
		`"input": ["the tide turns", "a"]`: 2, `"input": "the tide turns"`: 1, `"input": ` + string(both): 2, `"input": ` + string(one): 1,
		`"input": ["the tide turns", "a"], "encoding_format": "base64"`: 2, `"input": ["the tide turns", "a"], "encoding_format": "float", "dimensions": 8, "user": "u"`: 2,
	} {
		var r response
		s.ask("/v1/embeddings", `{"model": "bert", `+body+`}`, &r)
		tokens := len(ids)
		if count == 2 {
			tokens += len(second)
		}
		if len(r.Data) != count || r.Object != "list" || r.Usage.Prompt != tokens || r.Usage.Total != tokens {
			t.Fatalf("%s: got %+v", body, r)
		}
		for i, d := range r.Data {
			var got []float32
			if strings.Contains(body, "base64") {
				var text string
				_ = json.Unmarshal(d.Embedding, &text)
				raw, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				for at := 0; at < len(raw); at += 4 {
					got = append(got, math.Float32frombits(binary.LittleEndian.Uint32(raw[at:])))
				}
			} else if err := json.Unmarshal(d.Embedding, &got); err != nil {
				t.Fatal(err)
			}
			expected := want[i]
			if strings.Contains(body, "dimensions") {
				expected = unit(expected[:8])
			}
			if len(got) != len(expected) || d.Index != i {
				t.Fatalf("%s: vector %d has %d numbers", body, i, len(got))
			}
			for k := range got {
				if math.Abs(float64(got[k]-expected[k])) > 1e-5 {
					t.Errorf("%s: vector %d is %v, want %v", body, i, got, expected)
					break
				}
			}
		}
	}
}

// Scores are those of the Encoder, the best first.
func TestRerank(t *testing.T) {
	ranks := encoderOf(t, "ranks", "cross-bert")
	s := serveModels(t, Options{Texts: 4}, ranks, encoderOf(t, "bert", "bert"))
	texts := []string{"the tide", "a ship", "the sea"}
	want, err := ranks.Encoder.Rank(t.Context(), "the sea", texts)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/rerank", "/v2/rerank", "/rerank"} {
		var r struct {
			Results []struct {
				Index    int
				Score    float32 `json:"relevance_score"`
				Document struct{ Text string }
			}
		}
		s.ask(path, `{"model": "ranks", "query": "the sea", "documents": ["the tide", {"text": "a ship"}, "the sea"], "top_n": 2, "return_documents": true}`, &r)
		order := []int{0, 1, 2}
		slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, float64(want[b]-want[a]))) })
		if len(r.Results) != 2 {
			t.Fatalf("got %+v", r)
		}
		for i, got := range r.Results {
			if got.Index != order[i] || math.Abs(float64(got.Score-want[order[i]])) > 1e-6 || got.Document.Text != texts[order[i]] {
				t.Errorf("result %d is %+v, want text %d with %v", i, got, order[i], want[order[i]])
			}
		}
	}
	for body, text := range map[string]string{
		`{"model": "bert", "query": "a", "documents": ["b"]}`:                                         "/v1/embeddings",
		`{"model": "ranks", "documents": ["b"]}`:                                                      "query",
		`{"model": "ranks", "query": "` + strings.Repeat("the tide ", 400) + `", "documents": ["b"]}`: "query: it has",
		`{"model": "ranks", "query": "a"}`:                                                            "documents",
		`{"model": "ranks", "query": "a", "documents": []}`:                                           "documents",
		`{"model": "ranks", "query": "a", "documents": [1]}`:                                          "documents[0]",
		`{"model": "ranks", "query": "a", "documents": [{"title": "a"}]}`:                             "documents[0]",
		`{"model": "ranks", "query": "a", "documents": ["a","a","a","a","a"]}`:                        "more than 4",
		`{"model": "ranks", "query": "a", "documents": ["a"], "rank_fields": ["a"]}`:                  "rank_fields",
		`{"model": "ranks", "query": "a", "documents": ["a"], "top_n": 0}`:                            "top_n",
	} {
		if status, got := s.post("/v1/rerank", body); status != http.StatusBadRequest || !strings.Contains(got, text) {
			t.Errorf("%s: %d %s", body, status, got)
		}
	}
}

// A text that is too long is refused, unless the client lets it be cut. So are other wrong inputs.
func TestEmbeddings_Refused(t *testing.T) {
	s := serveModels(t, Options{Texts: 3}, encoderOf(t, "bert", "bert"), encoderOf(t, "ranks", "cross-bert"))
	long := strings.Repeat("the tide ", 400)
	for _, c := range []struct{ body, text string }{
		{`{"model": "bert", "input": "` + long + `"}`, "tokens, and the model takes"},
		{`{"model": "bert"}`, "want a text"}, {`{"model": "bert", "input": []}`, "want a text"}, {`{"model": "bert", "input": 5}`, "want a list"},
		{`{"model": "bert", "input": [[1], "a", 5]}`, "input[2]"}, {`{"model": "bert", "input": [null]}`, "input[0]"}, {`{"model": "bert", "input": [1, null]}`, "want a text or a list of tokens"},
		{`{"model": "bert", "input": [[]]}`, "input: text: EmbedTokens: text 0: it has no tokens"}, {`{"model": "bert", "input": ["a", "a", "a", "a"]}`, "more than 3"}, {`{"model": "bert", "input": [99999]}`, `"param":"input"`},
		{`{"model": "bert", "input": "a", "dimensions": 4096}`, "dimensions"}, {`{"model": "bert", "input": "a", "encoding_format": "int8"}`, "encoding_format"},
		{`{"model": "ranks", "input": "a"}`, "/v1/rerank"}, {`{"model": "bert", "input": "a", "colour": 1}`, "colour"},
	} {
		if status, got := s.post("/v1/embeddings", c.body); status != http.StatusBadRequest || !strings.Contains(got, c.text) {
			t.Errorf("%.60s: %d %.200s; want %q", c.body, status, got, c.text)
		}
	}
	if status, got := s.post("/v1/embeddings", `{"model": "bert", "truncate": true, "input": "`+long+`"}`); status != http.StatusOK {
		t.Errorf("a text that may be cut: %d %s", status, got)
	}
}

// The list has each model, also of a name with a slash. A request must bear the token, if there is
// one, and other paths say what there is.
func TestModels(t *testing.T) {
	s := serveModels(t, Options{Token: "secret-secret-secret"}, encoderOf(t, "org/bert", "bert"))
	get := func(path, token string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		if token != "" {
			r.Header.Set("Authorization", token)
		}
		w := httptest.NewRecorder()
		s.h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	const token = "Bearer secret-secret-secret"
	for _, c := range []struct {
		path, token string
		status      int
		text        string
	}{
		{"/v1/models", token, 200, `"id":"org/bert"`}, {"/v1/models/org/bert", token, 200, `"id":"org/bert"`}, {"/v1/models/bert", token, 404, "model_not_found"},
		{"/v1/models", "", 401, "invalid_api_key"}, {"/v1/models", "Bearer wrong", 401, "invalid_api_key"}, {"/v1/models", "secret-secret-secret", 401, "invalid_api_key"},
		{"/v1/responses", token, 404, "/v1/chat/completions"}, {"/v1/chat/completions", token, 405, "takes no GET: send a POST"}, {"/", token, 404, "the paths are"},
	} {
		if status, body := get(c.path, c.token); status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s with %q: %d %s; want %d %q", c.path, c.token, status, body, c.status, c.text)
		}
	}
}
