package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// packed returns a .tgz of members. Their names and contents alternate.
func packed(t *testing.T, members ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for i := 0; i < len(members); i += 2 {
		must.Do(t, w.WriteHeader(&tar.Header{Name: members[i], Mode: 0o644, Size: int64(len(members[i+1]))}))
		if _, err := w.Write([]byte(members[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	must.Do(t, w.Close())
	must.Do(t, z.Close())
	return out.Bytes()
}

// A stopped process that holds the lock does not stop the others.
func TestClaim_Bounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tgz")
	must.Do(t, os.WriteFile(path, packed(t, "a/1.png", "image"), 0o644))
	s := must.Get(openShard(OS, path, &Options{IndexDir: t.TempDir(), Counts: new(Counts)}))(t)
	defer s.Close()
	held := s.claim(t.Context(), 0)
	if held.waited {
		t.Error("the first claim has waited")
	}
	if c := s.claim(t.Context(), 30*time.Millisecond); !c.waited || c.lock != nil {
		t.Error("the second claim has not waited")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if c := s.claim(ended, time.Hour); !c.waited || c.lock != nil {
		t.Error("the third claim has not waited")
	}
	held.free()
	held.free()
	held = s.claim(t.Context(), 0)
	if held.waited || held.lock == nil {
		t.Error("the lock was not given back")
	}
	held.free()
}
