package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// An index file that was made by other rules for labels is made again.
func TestTable_OldRules(t *testing.T) {
	var members []string
	random := rand.NewChaCha8([32]byte{})
	for i := range 12 {
		image := make([]byte, 100)
		random.Read(image)
		members = append(members, fmt.Sprintf("data/%03d.cls", i), fmt.Sprint(i%3), fmt.Sprintf("data/%03d.png", i), string(image))
	}
	data := packed(t, members...)
	path, folder := filepath.Join(t.TempDir(), "a.tgz"), t.TempDir()
	must.Do(t, os.WriteFile(path, data, 0o644))
	// open reads the archive, calls f with its shard, and returns the names of the classes.
	open := func(f func(s *Shard)) []string {
		t.Helper()
		a := must.Get(Open(OS, path, Options{IndexDir: folder, ShuffleBuffer: 500, Counts: new(Counts)}))(t)
		defer a.Close()
		x, err := a.Index(t.Context(), true)
		if err != nil || len(x.Samples) != 12 {
			t.Fatalf("%d samples: %v", len(x.Samples), err)
		}
		f(a.Shards[0])
		return a.Classes()
	}
	right := open(func(s *Shard) {
		table := s.loadTable()
		if table == nil {
			t.Fatal("no index file was made")
		}
		for i := range table.entries {
			if table.entries[i].label != "" {
				table.entries[i].label = "\ufeff" + table.entries[i].label
			}
		}
		id := binary.LittleEndian.AppendUint64(nil, uint64(s.info.Size()))
		id = binary.LittleEndian.AppendUint64(id, uint64(s.info.ModTime().UnixNano()))
		hash := sha256.New()
		for range 17 {
			hash.Write(data)
		}
		hash.Write([]byte("label\x00"))
		old := must.Get(table.encode(hash.Sum(id)))(t)
		must.Do(t, os.WriteFile(s.indexFile, old, 0o644))
	})
	if again := open(func(*Shard) {}); !slices.Equal(again, right) || !slices.Equal(right, []string{"0", "1", "2"}) {
		t.Errorf("got classes %q, then %q", right, again)
	}
}
