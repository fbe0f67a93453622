package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text/openai"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// browser is a session of a Chromium, by the protocol WebDriver.
type browser struct {
	t       *testing.T
	session string // its address
}

func openBrowser(t *testing.T) *browser {
	driver, err := exec.LookPath("chromedriver")
	if err != nil {
		t.Skip("there is no chromedriver: ", err)
	}
	l := must.Get(net.Listen("tcp", "localhost:0"))(t)
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(driver, "--port="+address[strings.LastIndexByte(address, ':')+1:])
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	b := &browser{t: t, session: "http://" + address}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if r, err := http.Get(b.session + "/status"); err == nil {
			r.Body.Close()
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("chromedriver does not answer")
		}
	}
	var made struct{ SessionID string }
	b.call("POST", "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{"goog:chromeOptions": map[string]any{"args": []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--window-size=1000,900", "--user-data-dir=" + t.TempDir()}}}}}, &made)
	b.session += "/session/" + made.SessionID
	t.Cleanup(func() { b.call("DELETE", "", nil, nil) })
	return b
}

// call sends a command. The field "value" of its answer goes to `to`.
func (b *browser) call(method, path string, body, to any) {
	b.t.Helper()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			b.t.Fatal(err)
		}
	}
	r, err := http.NewRequest(method, b.session+path, bytes.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
	answer, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	got := struct{ Value json.RawMessage }{}
	err = json.NewDecoder(answer.Body).Decode(&got)
	if err == nil && to != nil {
		err = json.Unmarshal(got.Value, to)
	}
	if err != nil || answer.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %d %v, %s", method, path, answer.StatusCode, err, got.Value)
	}
}

// await waits until an expression of JavaScript is true.
func (b *browser) await(expression string) {
	b.t.Helper()
	for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(50 * time.Millisecond) {
		var is bool
		b.call("POST", "/execute/sync", map[string]any{"script": "return Boolean(" + expression + ")", "args": []any{}}, &is)
		if is {
			return
		}
	}
	var page string
	b.call("POST", "/execute/sync", map[string]any{"script": "return document.body.innerText", "args": []any{}}, &page)
	b.t.Errorf("it never became true: %s; the page is\n%s", expression, page)
}

// A model without memory for its reload is ready, and the page says why it is not loaded.
func TestPage_OutOfMemory(t *testing.T) {
	torchtest.CheckLeaks(t)
	const each = 1 << 30 // so that one model fits
	models, ctx := serve.NewRepository(serve.RepositoryOptions{Memory: 2*each - 1}), context.Background()
	defer models.Close()
	full := false
	for _, name := range []string{"a", "b"} {
		err := models.Add(name, "1", func() (*serve.Model, error) {
			if full {
				return nil, fmt.Errorf("full: %w", cgotorch.ErrOutOfMemory)
			}
			b, err := serve.New(cgotorch.CPU, func(_ *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor { return in },
				serve.Options{Inputs: []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{1}}}, BatchSizes: []int{1}})
			return &serve.Model{Batcher: b, Weights: each}, err
		})
		if err = errors.Join(err, models.Load(ctx, name, "")); err != nil {
			t.Fatal(err)
		}
	}
	full = true
	if _, err := models.Predict(ctx, "a", "", serve.Of([]float32{1}, 1, 1)); !errors.Is(err, cgotorch.ErrOutOfMemory) {
		t.Error(err)
	}
	if m := statusOf(models, newMetrics(models, cgotorch.CPU), &texts{Handler: openai.NewHandler(openai.Options{})}).Models[0]; m.State != "ready, out of memory until it is used" || !strings.Contains(m.Reason, "full") {
		t.Errorf("%+v", m)
	}
}

// A browser shows the models, the rates and the plot, with the token as a password. The file
// STREAMTORCH_PAGE gets a picture of the page.
func TestPage_Browser(t *testing.T) {
	b := openBrowser(t)
	token := "0123456789abcdef"
	path := t.TempDir() + "/token"
	must.Do(t, os.WriteFile(path, []byte(token), 0o600))
	s := start(t, flags{token: path})
	b.call("POST", "/url", map[string]any{"url": strings.Replace(s.main, "http://", "http://me:"+token+"@", 1)}, nil)
	b.await(`document.title == "streamtorch serve" && at("models").rows.length == 1`)
	b.await(`at("models").rows[0]?.innerText?.split("\t").slice(0, 3).join() == "cifar10,1,ready"`)
	for i := range 40 {
		if status, text := s.call(t, "POST", s.main+classify, frog(t), "Authorization", "Bearer "+token); status != 200 {
			t.Fatalf("request %d: %d %s", i, status, text)
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.await(`Number(at("rate").textContent) > 0 && Number(at("p50").textContent) > 0 && Number(at("p99").textContent) >= Number(at("p50").textContent)`)
	b.await(`at("models").rows[0]?.cells[4].textContent == "40"`)
	b.await(`["p50", "p99"].every(name => document.querySelector("polyline." + name).getAttribute("points").split(" ").length >= 2)`)
	b.await(`document.querySelector("polyline.p99").getBoundingClientRect().height > 0`)
	if to := os.Getenv("STREAMTORCH_PAGE"); to != "" {
		var picture string
		b.call("GET", "/screenshot", nil, &picture)
		png, err := base64.StdEncoding.DecodeString(picture)
		if err == nil {
			err = os.WriteFile(to, png, 0o600)
		}
		must.Check(t, err)
	}
	if err := s.stop(); err != nil {
		t.Error(fmt.Errorf("stop: %w", err))
	}
	b.await(`document.title.startsWith("not reached")`)
}
