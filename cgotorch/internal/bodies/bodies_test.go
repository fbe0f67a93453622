package bodies

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
)

// All memory that a body holds counts, also that of a buffer that another body has left. A body
// never gets a buffer much larger than itself.
func TestBound_Memory(t *testing.T) {
	b := Bound{Most: 8 << 20, All: 16 << 20}
	for _, known := range []bool{true, false} {
		for _, size := range []int{0, 1, 300 << 10, 1, 1 << 20, 1, 4 << 20, 1, 8 << 20, 1} {
			text := strings.Repeat(".", size)
			r := httptest.NewRequest("POST", "/", strings.NewReader(text))
			if !known {
				r.ContentLength = -1
			}
			got := must.Get(b.Read(httptest.NewRecorder(), r))(t)
			if string(got.Bytes) != text {
				t.Errorf("%d bytes of %d were read", len(got.Bytes), size)
			}
			if held := int64(cap(got.Bytes)); b.used < held || held > max(2*int64(size), 1<<20) {
				t.Errorf("a body of %d bytes holds %d and counts as %d", size, held, b.used)
			}
			b.Give(got)
			if b.used != 0 {
				t.Errorf("%d bytes count after the last body", b.used)
			}
		}
	}
}

// A compressed body is read to its end, so that a server sees when the client leaves. What stands
// behind it is refused.
func TestBound_Packed(t *testing.T) {
	for _, encoding := range []string{"gzip", "deflate", "GZIP", "x-gzip"} {
		var packed bytes.Buffer
		to := io.WriteCloser(gzip.NewWriter(&packed))
		if encoding == "deflate" {
			to = zlib.NewWriter(&packed)
		}
		must.Get(to.Write([]byte("abc")))(t)
		must.Do(t, to.Close())
		for more, want := range map[string]string{"": "abc", "x": ""} {
			b := Bound{Most: 1 << 20, All: 4 << 20}
			body := &parts{[]string{packed.String(), more}, false}
			r := httptest.NewRequest("POST", "/", body)
			r.Header.Set("Content-Encoding", encoding)
			got, err := b.Read(httptest.NewRecorder(), r)
			if want == "" && !errors.Is(err, cgotorch.ErrInvalidArgument) || want != "" && (err != nil || string(got.Bytes) != want || !body.ended) {
				t.Errorf("%s with %q behind it: got %v, %v, the end was read: %v", encoding, more, got, err, body.ended)
			}
		}
	}
}

// parts is a body that comes in parts, and then ends.
type parts struct {
	texts []string
	ended bool
}

func (p *parts) Read(to []byte) (int, error) {
	if len(p.texts) == 0 {
		p.ended = true
		return 0, io.EOF
	}
	n := copy(to, p.texts[0])
	if p.texts[0] = p.texts[0][n:]; p.texts[0] == "" {
		p.texts = p.texts[1:]
	}
	return n, nil
}
