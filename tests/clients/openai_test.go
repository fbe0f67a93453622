package clients

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// openaiServers are two servers of OpenAI's interface. The clients of openai.py and of the module
// in the folder openai ask them.
type openaiServers struct{ main, admin, guarded, token string }

func startOpenAI(t *testing.T) (s openaiServers) {
	const encoders = "../parity/encoders/testdata/"
	program, decoder, tokenFile := build(t), writeDecoder(t), filepath.Join(t.TempDir(), "token")
	s.token = "sk-0123456789abcdef"
	must.Do(t, os.WriteFile(tokenFile, []byte(s.token), 0o600))
	ports := start(t, program, 2, "-text", "tiny="+decoder, "-text-tokens", "65536", "-encoder", "vectors="+encoders+"bert", "-encoder", "ranks="+encoders+"cross-bert")
	s.main, s.admin = "localhost:"+ports[0], "localhost:"+ports[1]
	s.guarded = "localhost:" + start(t, program, 1, "-text", "tiny="+decoder, "-token-file", tokenFile, "-per-client", "2", "-text-timeout", "2s")[0]
	return s
}

// The clients that people have work with the server as they are.
func TestOpenAI(t *testing.T) {
	s := startOpenAI(t)
	t.Run("Go", func(t *testing.T) {
		download := exec.Command("go", "mod", "download")
		download.Dir = "openai"
		if out, err := download.CombinedOutput(); err != nil {
			t.Skipf("the modules of Go's clients cannot be downloaded: %v\n%s", err, out)
		}
		cmd := exec.Command("go", "test", "-count=1", "-v", ".")
		cmd.Dir = "openai"
		cmd.Env = append(os.Environ(), "STREAMTORCH_SERVER="+s.main, "STREAMTORCH_GUARDED="+s.guarded, "STREAMTORCH_TOKEN="+s.token)
		out, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("--- SKIP")) {
			t.Errorf("%v\n%s", err, out)
		}
		t.Logf("%s", out)
	})
	for _, client := range []string{"openai", "cohere", "jina", "langchain", "litellm"} {
		t.Run(client, func(t *testing.T) {
			if os.Getenv(python) == "" {
				t.Skipf("%s does not name a Python with openai, cohere, requests, langchain-openai and litellm", python)
			}
			out, err := exec.Command(os.Getenv(python), "openai.py", client, s.main, s.admin, s.guarded, s.token).CombinedOutput()
			if failed := new(exec.ExitError); errors.As(err, &failed) && failed.ExitCode() == 77 {
				t.Skipf("%s", out)
			}
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
	t.Run("curl", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip(err)
		}
		const chat = `{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3`
		for _, c := range []struct {
			path, body string
			want       []string
		}{
			{"/v1/chat/completions", chat + "}", []string{"Content-Type: application/json", `"object":"chat.completion"`}},
			{"/v1/chat/completions", chat + `, "stream": true}`, []string{"Content-Type: text/event-stream", "\n\ndata: {", "data: [DONE]\n\n"}},
			{"/v1/embeddings", `{"model": "vectors", "input": "a"}`, []string{`"embedding":[`}},
			{"/v1/rerank", `{"model": "ranks", "query": "a", "documents": ["a"]}`, []string{`"relevance_score":`}},
			{"/v1/responses", `{}`, []string{"HTTP/1.1 404", "/v1/chat/completions"}},
		} {
			out, err := exec.Command("curl", "-sSiN", "-d", c.body, "http://"+s.main+c.path).Output()
			for _, part := range c.want {
				if err != nil || !strings.Contains(strings.ReplaceAll(string(out), "\r", ""), part) {
					t.Errorf("%s %s: %v, %q is missing in\n%s", c.path, c.body, err, part, out)
				}
			}
		}
	})
}
