package imageloader

import (
	"errors"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

// An image that the decoder had no memory for may be good. Its error is not of the kind for which a
// program deletes files.
func TestItem_Judge(t *testing.T) {
	it := item{path: "a.tgz", member: 3, name: "train/cat/1.jpg"}
	for _, of := range []error{decode.ErrOutOfMemory, decode.ErrInternal} {
		bad, err := it.judge(&decode.Result{Err: of})
		if bad != nil || errors.Is(err, ErrBadMember) {
			t.Errorf("%v: got %v and %v, want an error of the decoder alone", of, bad, err)
		}
		wantError(t, err, of, "a.tgz: member 3 (train/cat/1.jpg)")
	}
	bad, err := it.judge(&decode.Result{Err: errors.New("truncated JPEG")})
	must.Check(t, err)
	wantError(t, bad, ErrBadMember, "truncated JPEG")
}
