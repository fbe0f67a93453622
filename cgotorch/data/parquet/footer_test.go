package parquet

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A damaged footer takes little memory. Seed 5 has footers whose lists would take gigabytes.
func TestCheckFooter_Damaged(t *testing.T) {
	whole := must.Get(os.ReadFile(write(t, 30)))(t)
	path := filepath.Join(t.TempDir(), "b.parquet")
	rng := rand.New(rand.NewPCG(5, 6))
	failed := 0
	for i := range 750 {
		damaged := append([]byte{}, whole...)
		for range 1 + rng.IntN(4) {
			damaged[rng.IntN(len(damaged))] = byte(rng.Uint32())
		}
		must.Do(t, os.WriteFile(path, damaged, 0o666))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := Open(path, Options{Fields: fields})
		if err == nil {
			_, err = data.ReadTable(context.Background(), f, 1<<20)
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 256<<20 {
			t.Fatalf("file %d takes %d MiB", i, (after.TotalAlloc-before.TotalAlloc)>>20)
		}
		if err != nil {
			failed++
		}
	}
	if failed < 100 {
		t.Errorf("%d of 750 damaged files end with an error", failed)
	}
	for _, content := range []string{"", "PAR1", "PAR1\xff\xff\xff\x7fPAR1", "PAR1\x00\x00\x00\x00PAR1"} {
		must.Do(t, os.WriteFile(path, []byte(content), 0o666))
		_, err := Open(path, Options{Fields: fields})
		torchtest.WantError(t, err, data.ErrBadRow, "b.parquet")
	}
}
