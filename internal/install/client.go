package install

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// newClient returns a client that uses the proxy and trusts the certificates of pip's
// configuration. Without them the proxies are those of the environment. The certificates of the
// system are trusted too.
func (in *Installer) newClient(settings pip) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 15 * time.Second}).DialContext
	if proxy := settings.proxy; proxy != "" {
		if !strings.Contains(proxy, "://") {
			proxy = "http://" + proxy
		}
		u, err := url.Parse(proxy)
		if err != nil || u.Host == "" {
			return nil, errors.New("the proxy of pip's configuration cannot be read; write it as http://USER:PASSWORD@HOST:PORT")
		}
		transport.Proxy = http.ProxyURL(u)
	}
	if settings.cert != "" {
		pool, err := certificatesOf(settings.cert)
		if err != nil {
			return nil, fmt.Errorf("the certificates %s of pip's configuration: %w; name a file of PEM certificates as cert in pip.conf, or in PIP_CERT", settings.cert, err)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return &http.Client{Transport: transport, CheckRedirect: keepUser}, nil
}

// keepUser gives the user and password of a request to a redirection within its host.
func keepUser(request *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("it redirects 10 times")
	}
	if first := via[0].URL; request.URL.User == nil && sameOrigin(request.URL, first) {
		request.URL.User = first.User
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// certificatesOf returns the certificates of the system and those of a file or of the files of a
// folder.
func certificatesOf(path string) (*x509.CertPool, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		path = under("HOME", rest)
	}
	files := []string{path}
	if isFolder(path) {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		files = nil
		for _, e := range entries {
			if file := filepath.Join(path, e.Name()); !isFolder(file) {
				files = append(files, file)
			}
		}
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	found := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found = pool.AppendCertsFromPEM(text) || found
	}
	if !found {
		return nil, errors.New("no certificate is there")
	}
	return pool, nil
}

// printable returns an address without its user, password and query, as a message may show it. A
// path of a file stays as it is.
func printable(address string) string {
	u, err := url.Parse(address)
	if err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") {
		return u.Scheme + "://" + u.Host + u.EscapedPath()
	}
	if strings.ContainsAny(address, "@?") && !filepath.IsAbs(address) || strings.Contains(address, "://") {
		return "an address that cannot be read"
	}
	return address
}

// get asks for an address, and gives the answer and its body to use. It gives up a server that is
// silent.
func (in *Installer) get(ctx context.Context, client *http.Client, from string, header http.Header, use func(response *http.Response, body io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return fmt.Errorf("%w: it is no URL", errIndex)
	}
	request.Header = header
	timer := time.AfterFunc(in.silence(), func() { cancel(errSilent) })
	defer timer.Stop()
	response, err := in.ask(client, request)
	if err != nil {
		return plain(ctx, err)
	}
	defer response.Body.Close()
	timer.Reset(in.silence())
	return use(response, readerFunc(func(p []byte) (int, error) {
		n, err := response.Body.Read(p)
		timer.Reset(in.silence())
		if err != nil && err != io.EOF {
			err = plain(ctx, err)
		}
		return n, err
	}))
}

// ask sends a request. It tells for whom it waits if no answer comes for some time.
func (in *Installer) ask(client *http.Client, request *http.Request) (response *http.Response, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		response, err = client.Do(request)
	}()
	select {
	case <-done:
	case <-time.After(in.silence() / 5):
		in.Out.Line("waiting for an answer of %s", request.URL.Host)
		<-done
	}
	return response, err
}

// plain returns the reason of a failed request without the request, which may have a password.
func plain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		return fmt.Errorf("%w; if your network has certificates of its own, name their file as cert in pip.conf, or in PIP_CERT", err)
	case strings.Contains(err.Error(), http.StatusText(http.StatusProxyAuthRequired)):
		return proxyRefuses()
	case strings.Contains(err.Error(), "Location header"):
		return errors.New("it redirects to an address that cannot be read")
	}
	return err
}

func proxyRefuses() error {
	return fmt.Errorf("the proxy %w; give its user and password (HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, or proxy in pip's configuration)", errRefused)
}

// refusal returns the error for an answer that is no file.
func refusal(response *http.Response) error {
	host := response.Request.URL.Host
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%s: %w (%s)", host, errStatus, response.Status)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s %w (%s); give the user and password (-index https://USER:PASSWORD@HOST/..., or pip's configuration)", host, errRefused, strings.TrimSpace(response.Status))
	case http.StatusProxyAuthRequired:
		return proxyRefuses()
	}
	return fmt.Errorf("%s answers %s", host, response.Status)
}
