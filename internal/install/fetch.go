package install

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A download gives up a connection that sends nothing for this long, and tries again.
const patience = 30 * time.Second

const tries = 4

// errSilent is the cause of a connection that was given up.
var errSilent = errors.New("it sent nothing for too long")

// errStatus is wrapped by the error for an answer that is not the file.
var errStatus = errors.New("the server does not have it")

func (in *Installer) silence() time.Duration {
	if in.Patience > 0 {
		return in.Patience
	}
	return patience
}

// newClient returns a client that follows the environment's proxies. It trusts the certificates of
// the system, and those of pip's configuration.
func (in *Installer) newClient(certificates string) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 15 * time.Second}).DialContext
	transport.ResponseHeaderTimeout = in.silence()
	if certificates != "" {
		text, err := os.ReadFile(certificates)
		if err != nil {
			return nil, fmt.Errorf("pip's configuration names the certificates %s: %w; mend it", certificates, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(text)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return &http.Client{Transport: transport}, nil
}

// A file is something to download.
type file struct {
	title  string
	bytes  int64 // 0 if it is not known
	sha256 string
}

// fetch downloads a file to a path. It goes on where an earlier one was cut off, also one of
// another process. It tries again if the connection breaks. The file at the path is whole and has
// its SHA-256.
func (in *Installer) fetch(ctx context.Context, client *http.Client, from string, f file, path string) error {
	part := path + ".part"
	defer func() {
		if sizeOf(part) == 0 {
			os.Remove(part)
		}
	}()
	for try := 1; ; try++ {
		resumed, err := in.fetchOnce(ctx, client, from, f, part)
		var wrong *wrongSum
		switch {
		case err == nil:
			in.Out.finished("%s: %d MB, checked", f.title, megabytes(sizeOf(part)))
			return os.Rename(part, path)
		case errors.As(err, &wrong):
			os.Remove(part)
			if resumed { // what was there before may be of another file
				continue
			}
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errStatus) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, os.ErrPermission) || try == tries:
			return err
		}
		in.Out.Line("%s: %v; trying again", f.title, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(try) * time.Second):
		}
	}
}

// A wrongSum is the error for a file that is not the one that is wanted.
type wrongSum struct{ title, have, want string }

func (w *wrongSum) Error() string {
	return fmt.Sprintf("what the server sent has the SHA-256 %.12s…, and %.12s… is wanted", w.have, w.want)
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// fetchOnce downloads what is missing of a file. `resumed` says that a part was there.
func (in *Installer) fetchOnce(ctx context.Context, client *http.Client, from string, f file, part string) (resumed bool, err error) {
	out, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return false, unwritable(filepath.Dir(part), err)
	}
	defer out.Close()
	sum := sha256.New()
	have, err := io.Copy(sum, out)
	if err != nil {
		return false, err
	}
	if f.bytes > 0 && have > f.bytes {
		have = 0
	}
	if f.bytes == 0 || have < f.bytes {
		if err := in.receive(ctx, client, from, f, out, have, sum); err != nil {
			return have > 0, err
		}
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != f.sha256 {
		return have > 0, &wrongSum{f.title, got, f.sha256}
	}
	return have > 0, out.Close()
}

// receive asks for a file from byte `have` on, and writes it behind what is there.
func (in *Installer) receive(ctx context.Context, client *http.Client, from string, f file, out *os.File, have int64, sum hash.Hash) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	if have > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	response, err := client.Do(request)
	if err != nil {
		return plain(ctx, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusPartialContent:
	case http.StatusOK, http.StatusRequestedRangeNotSatisfiable:
		have = 0
		sum.Reset()
		if err := out.Truncate(0); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return errors.New("the server has a file of another size")
		}
	default:
		return refusal(response)
	}
	if _, err := out.Seek(have, io.SeekStart); err != nil {
		return err
	}
	whole := f.bytes
	if whole == 0 {
		whole = have + max(0, response.ContentLength)
	}
	timer := time.AfterFunc(in.silence(), func() { cancel(errSilent) })
	defer timer.Stop()
	body := readerFunc(func(p []byte) (int, error) {
		n, err := response.Body.Read(p)
		timer.Reset(in.silence())
		have += int64(n)
		in.Out.progress(f.title, megabytes(have), megabytes(whole), "MB")
		return n, err
	})
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(out, sum)}, body, make([]byte, 1<<20)); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return full(filepath.Dir(out.Name()))
		}
		return plain(ctx, err)
	}
	return nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// plain returns the reason of a failed request without the request.
func plain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// refusal returns the error for an answer that is no file.
func refusal(response *http.Response) error {
	host := response.Request.URL.Host
	switch {
	case response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusGone:
		return fmt.Errorf("%s: %w (%s)", host, errStatus, response.Status)
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusProxyAuthRequired:
		return fmt.Errorf("%s refuses it (%s): %w", host, strings.TrimSpace(response.Status), errStatus)
	}
	return fmt.Errorf("%s answers %s", host, response.Status)
}
