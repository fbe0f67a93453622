package bodies

import (
	"net/http/httptest"
	"strings"
	"testing"

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
