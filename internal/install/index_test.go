//go:build !windows

package install

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// The configuration is read as pip reads it.
func TestPipSettings(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want pip
	}{
		"nothing":       {want: pip{indexes: []string{pypi}}},
		"colon":         {text: "[global]\ntimeout = 3\nindex-url: https://corp/simple\n", want: pip{indexes: []string{"https://corp/simple"}}},
		"case":          {text: "[global]\n--Index_URL = https://corp/simple\n", want: pip{indexes: []string{"https://corp/simple"}}},
		"mark":          {text: "\ufeff[global]\nindex-url = https://corp/simple\n", want: pip{indexes: []string{"https://corp/simple"}}},
		"empty":         {text: "[global]\nindex-url = https://corp/simple\n", want: pip{indexes: []string{"https://corp/simple"}}},
		"section":       {text: "[install]\nindex-url = https://a/simple\n[global]\nindex-url = https://b/simple\n", want: pip{indexes: []string{"https://a/simple"}}},
		"lines":         {text: "[global]\nextra-index-url =\n    https://a/simple\n    https://b/simple\n", want: pip{indexes: []string{pypi, "https://a/simple", "https://b/simple"}}},
		"other section": {text: "[list]\nindex-url = https://a/simple\n", want: pip{indexes: []string{pypi}}},
		"all": {text: "[global]\nproxy = corp:3128\ncert = ~/corp.pem\nno-index = true\n",
			want: pip{indexes: []string{pypi}, proxy: "corp:3128", cert: "~/corp.pem", noIndex: true}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pip.conf")
			write(t, file, c.text)
			for _, variable := range []string{"HOME", "XDG_CONFIG_HOME", "VIRTUAL_ENV"} {
				t.Setenv(variable, t.TempDir())
			}
			for _, variable := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_PROXY", "PIP_NO_INDEX"} {
				t.Setenv(variable, "")
			}
			settings := map[string]string{}
			readPipConfig("/etc/pip.conf", settings)
			if len(settings) > 0 {
				t.Skip("this machine has a /etc/pip.conf")
			}
			t.Setenv("PIP_CONFIG_FILE", file)
			if got := pipSettings(); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// No message has a password, also that of an address that cannot be read.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://alice:S3cret@host/simple?token=S3cret": "https://host/simple",
		"https://alice:S3cret@host:port/simple":         "an address that cannot be read",
		"https://alice:S3%cret@host/simple":             "an address that cannot be read",
		"alice:S3cret@host/simple":                      "an address that cannot be read",
		"/home/a@b/libraries":                           "/home/a@b/libraries",
		"build/lib":                                     "build/lib",
	} {
		if got := printable(address); got != want {
			t.Errorf("printable(%q) = %q, want %q", address, got, want)
		}
	}
	c := newClone(t)
	for _, address := range []string{"https://alice:S3%cret@host/simple", "alice:S3cret@host/simple", "http://alice:S3cret@127.0.0.1:1/simple"} {
		out, err := c.setup("PIP_INDEX_URL=" + address)
		if err == nil || strings.Contains(out, "cret") || strings.Contains(out, "alice") {
			t.Errorf("with the index %q: %v\n%s", address, err, out)
		}
	}
	c.mustFail([]string{"PIP_INDEX_URL=alice:S3cret@host"}, "the index URL of pip's configuration (or -index) cannot be read")
	c.mustFail([]string{"PIP_NO_INDEX=1"}, "no-index is set", "-index")
}

// Where the first index cannot be used, the others are asked. If none has the wheel, the error
// names each.
func TestSetup_Indexes(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	good := c.index.server.URL + "/simple"
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(refusing.Close)
	c.mustFail([]string{"PIP_INDEX_URL=http://127.0.0.1:1/simple", "PIP_EXTRA_INDEX_URL=" + refusing.URL},
		"http://127.0.0.1:1/simple cannot be reached", refusing.URL, "refuses it (401", "https://USER:PASSWORD@HOST")
	for _, first := range []string{"http://127.0.0.1:1/simple", refusing.URL} {
		c.cache = filepath.Join(t.TempDir(), "cache")
		c.mustSetup("STREAMTORCH_CACHE="+c.cache, "PIP_INDEX_URL="+first, "PIP_EXTRA_INDEX_URL="+good)
		os.Remove(filepath.Join(c.root, "build/setup.build"))
	}
}

// The user and password go to the host of the index alone, by its protocol, also after a
// redirection.
func TestIndex_User(t *testing.T) {
	t.Parallel()
	index := must.Get(url.Parse("https://alice:S3cret@host/simple/"))(t)
	for link, want := range map[string]string{
		"https://host/a.whl": "https://alice:S3cret@host/a.whl", "/a.whl": "https://alice:S3cret@host/a.whl",
		"http://host/a.whl": "http://host/a.whl", "https://other/a.whl": "https://other/a.whl",
	} {
		if got, err := resolve(index, index, link); err != nil || got != want {
			t.Errorf("resolve(%s) = %s, %v; want %s", link, got, err, want)
		}
	}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "alice" || password != "S3cret" {
			w.WriteHeader(http.StatusUnauthorized)
		} else if r.URL.Path == "/a" {
			http.Redirect(w, r, server.URL+"/b", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	in, _ := newInstaller(t)
	client := must.Get(in.newClient(pip{}))(t)
	err := in.get(context.Background(), client, strings.Replace(server.URL, "//", "//alice:S3cret@", 1)+"/a", http.Header{}, func(response *http.Response, _ io.Reader) error {
		if response.StatusCode != http.StatusOK {
			return refusal(response)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// An index gets the user and password that ~/.netrc has for its host.
func TestSetup_Netrc(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "alice" || password != "S3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		c.index.serve(w, r)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "netrc")
	write(t, file, "machine other login bob password other\nmachine 127.0.0.1\n  login alice\n  password S3cret\n")
	c.mustFail([]string{"PIP_INDEX_URL=" + server.URL + "/simple", "NETRC=/nonexistent"}, "refuses it (401")
	c.mustSetup("PIP_INDEX_URL="+server.URL+"/simple", "NETRC="+file)
}

// An index whose page stops is given up and asked again. A server that says nothing is told of.
func TestIndex_Silent(t *testing.T) {
	t.Parallel()
	in, ix := newInstaller(t)
	var said bytes.Buffer
	in.Out = NewPrinter(&said)
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asked++; asked {
		case 1:
			<-r.Context().Done()
		case 2:
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			ix.serve(w, r)
		}
	}))
	t.Cleanup(server.Close)
	in.Index, in.Patience = server.URL+"/simple", time.Second/2
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	must.Get(in.fromWheels(ctx))(t)
	if host := strings.TrimPrefix(server.URL, "http://"); !strings.Contains(said.String(), "waiting for an answer of "+host) {
		t.Errorf("it said\n%s", &said)
	}
}

// The certificates of pip's configuration are a file or a folder. One without any is an error.
func TestClient_Certificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	server.Config.ErrorLog = nil
	folder := t.TempDir()
	write(t, filepath.Join(folder, "readme"), "no certificate")
	in, _ := newInstaller(t)
	for _, path := range []string{folder, filepath.Join(folder, "readme"), filepath.Join(folder, "absent")} {
		if _, err := in.newClient(pip{cert: path}); err == nil || !strings.Contains(err.Error(), "PIP_CERT") {
			t.Errorf("certificates %s: %v", path, err)
		}
	}
	write(t, filepath.Join(folder, "a.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	for cert, want := range map[string]string{"": "name their file as cert", folder: "does not have it"} {
		client := must.Get(in.newClient(pip{cert: cert}))(t)
		err := in.get(context.Background(), client, server.URL, http.Header{}, func(response *http.Response, _ io.Reader) error { return refusal(response) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the certificates %q: %v, want %q", cert, err, want)
		}
	}
}

// A proxy that wants a user says so, for http and for https.
func TestClient_Proxy(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusProxyAuthRequired) }))
	t.Cleanup(proxy.Close)
	in, _ := newInstaller(t)
	client := must.Get(in.newClient(pip{proxy: proxy.Listener.Addr().(*net.TCPAddr).String()}))(t)
	for _, address := range []string{"http://192.0.2.1/", "https://192.0.2.1/"} {
		err := in.get(context.Background(), client, address, http.Header{}, func(response *http.Response, _ io.Reader) error { return refusal(response) })
		if want := "the proxy refuses it; give its user and password"; err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// A wheel that a killed process has downloaded is used.
func TestWheels_Downloaded(t *testing.T) {
	t.Parallel()
	in, ix := newInstaller(t)
	w := must.Get(in.Lock.wheelsOf("amd64", "torch"))(t)[0]
	write(t, w.part(in.Root), string(ix.wheels[1].data))
	must.Get(in.fromWheels(context.Background()))(t)
	if got := ix.downloads(); got["fixture-torch"] != 0 || got["fixture-runtime"] != 1 {
		t.Errorf("downloads = %v, want that of fixture-runtime alone", got)
	}
	if left := must.Get(os.ReadDir(filepath.Join(in.Root, "tmp")))(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A file that a cleaner has deleted or cut, from a tree and from the wheels that it is made of, is
// restored.
func TestWheels_Cleaned(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, file := range []string{"torch/lib/libc10.so", "nvidia/cu13/lib/libcudart.so.13", "torch/include/ATen/core/dispatch/Dispatcher.h"} {
		for _, size := range []int64{-1, 0} {
			in, _ := newInstaller(t)
			tree := filepath.Dir(must.Get(in.fromWheels(ctx))(t).Folder)
			want := sizeOf(filepath.Join(tree, file))
			copies, err := fs.Glob(os.DirFS(in.Root), "wheels/*/"+file)
			if err != nil || len(copies) != 1 {
				t.Fatalf("the wheels have %v, %v", copies, err)
			}
			for _, path := range []string{filepath.Join(tree, file), filepath.Join(in.Root, copies[0])} {
				if size < 0 {
					must.Do(t, os.Remove(path))
				} else {
					must.Do(t, os.Truncate(path, size))
				}
			}
			must.Get(in.fromWheels(ctx))(t)
			if got := sizeOf(filepath.Join(tree, file)); got != want {
				t.Errorf("%s has %d bytes, want %d", file, got, want)
			}
		}
	}
}

// In a root of any name, what is there is not made again. The root of newInstaller has the signs of
// patterns in its name.
func TestWheels_Pattern(t *testing.T) {
	t.Parallel()
	in, _ := newInstaller(t)
	stat := func() os.FileInfo {
		torch := must.Get(in.fromWheels(context.Background()))(t)
		return must.Get(os.Stat(torch.Folder))(t)
	}
	if before, after := stat(), stat(); !os.SameFile(before, after) {
		t.Error("the tree was made twice")
	}
}
