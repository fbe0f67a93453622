//go:build !windows

package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// A download goes on after each fault of a server that a later try can mend, and fails after the
// others. In no case is there a file at the path that is not whole.
func TestFetch(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	whole := func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
	half := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.Write(content[:len(content)/2])
		w.(http.Flusher).Flush()
	}
	for name, c := range map[string]struct {
		before string // what an earlier download has left
		serve  func(try int, w http.ResponseWriter, r *http.Request)
		tries  int32
		fails  string
		stays  bool // what was there before
	}{
		"a page for the rest": {before: string(content[:100]), serve: func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Write(bytes.Repeat([]byte("Log in. "), len(content)/8))
		}, tries: 1, fails: "sent a page, not the file", stays: true},
		"another size": {before: string(content[:100]), serve: func(_ int, w http.ResponseWriter, r *http.Request) { io.WriteString(w, "no") }, tries: 1, fails: "sent a page, not the file", stays: true},
		"another range": {before: string(content[:100]), serve: func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(content)-1, len(content)))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(content)
		}, tries: 1, fails: "asked for the bytes from 100 on", stays: true},
		"cut without a length": {serve: func(try int, w http.ResponseWriter, r *http.Request) {
			if try > 1 {
				whole(w, r)
				return
			}
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(connection, "HTTP/1.0 200 OK\r\nContent-Type: application/zip\r\n\r\n%s", content[:len(content)/2])
				connection.Close()
			}
		}, tries: 2},
		"without an end": {serve: func(_ int, w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write(content)
			}
		}, tries: 1, fails: "it is longer than"},
		"broken and wrong": {serve: func(try int, w http.ResponseWriter, r *http.Request) {
			if try%2 == 1 && try < 9 {
				half(w)
				panic(http.ErrAbortHandler)
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(bytes.ToUpper(content)))
		}, tries: tries, fails: "SHA-256"},
		"packed": {serve: func(_ int, w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "identity" {
				http.Error(w, "it would be packed", http.StatusNotFound)
				return
			}
			whole(w, r)
		}, tries: 1},
		"whole":        {serve: func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r) }, tries: 1},
		"a part":       {before: string(content[:100]), serve: func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r) }, tries: 1},
		"a wrong part": {before: "something else", serve: func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r) }, tries: 2},
		"a long part":  {before: string(content) + "x", serve: func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r) }, tries: 1},
		"all is there": {before: string(content), serve: func(_ int, w http.ResponseWriter, r *http.Request) { whole(w, r) }, tries: 0},
		"broken once": {serve: func(try int, w http.ResponseWriter, r *http.Request) {
			if try == 1 {
				half(w)
				panic(http.ErrAbortHandler)
			}
			whole(w, r)
		}, tries: 2},
		"no ranges": {before: string(content[:100]), serve: func(_ int, w http.ResponseWriter, r *http.Request) { w.Write(content) }, tries: 1},
		"silent once": {serve: func(try int, w http.ResponseWriter, r *http.Request) {
			if try == 1 {
				half(w)
				<-r.Context().Done()
				return
			}
			whole(w, r)
		}, tries: 2},
		"never answers": {serve: func(_ int, w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, tries: tries, fails: "sent nothing"},
		"other bytes":   {serve: func(_ int, w http.ResponseWriter, r *http.Request) { w.Write(bytes.ToUpper(content)) }, tries: 1, fails: "SHA-256"},
		"not there":     {serve: func(_ int, w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, tries: 1, fails: "does not have it"},
		"refused":       {serve: func(_ int, w http.ResponseWriter, r *http.Request) { http.Error(w, "", http.StatusForbidden) }, tries: 1, fails: "refuses it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(int(asked.Add(1)), w, r) }))
			t.Cleanup(server.Close)
			path := filepath.Join(t.TempDir(), "file")
			if c.before != "" {
				must.Do(t, os.WriteFile(path+".part", []byte(c.before), 0o666))
			}
			in := &Installer{Out: NewPrinter(io.Discard), Patience: time.Second / 2}
			client := must.Get(in.newClient(pip{}))(t)
			err := in.fetch(context.Background(), client, server.URL, file{"file", int64(len(content)), sum}, path)
			have, missing := os.ReadFile(path)
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("got %v, want an error with %q", err, c.fails)
			case c.fails != "" && missing == nil:
				t.Error("a failed download left a file")
			case c.fails == "" && (err != nil || !bytes.Equal(have, content)):
				t.Errorf("got %v and %d bytes", err, len(have))
			}
			if part, _ := os.ReadFile(path + ".part"); c.stays && string(part) != c.before {
				t.Errorf("of %d bytes that were there, %d stay", len(c.before), len(part))
			}
			if got := asked.Load(); got != c.tries {
				t.Errorf("it asked %d times, want %d", got, c.tries)
			}
		})
	}
}

// A download that is stopped leaves what came, and the next one asks for the rest alone.
func TestFetch_Stopped(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("streams"), 1<<15)
	ctx, stop := context.WithCancelCause(context.Background())
	var ranges []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ranges = append(ranges, r.Header.Get("Range")); len(ranges) > 1 {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
			return
		}
		w.Write(content[:70_000])
		w.(http.Flusher).Flush()
		time.Sleep(100 * time.Millisecond)
		stop(errors.New("stopped"))
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "file")
	in := &Installer{Out: NewPrinter(io.Discard)}
	client := must.Get(in.newClient(pip{}))(t)
	f := file{"file", int64(len(content)), fmt.Sprintf("%x", sha256.Sum256(content))}
	if err := in.fetch(ctx, client, server.URL, f, path); err == nil || err.Error() != "stopped" {
		t.Errorf("a stopped download: %v", err)
	}
	must.Do(t, in.fetch(context.Background(), client, server.URL, f, path))
	if want := []string{"", "bytes=70000-"}; fmt.Sprint(ranges) != fmt.Sprint(want) {
		t.Errorf("it asked for %q, want %q", ranges, want)
	}
}
