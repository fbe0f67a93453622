package programs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// BenchmarkProgram_Call runs the first call of each program in CGOTORCH_PROGRAMS with one thread.
func BenchmarkProgram_Call(b *testing.B) {
	made := os.Getenv("CGOTORCH_PROGRAMS")
	if made == "" {
		b.Skip("CGOTORCH_PROGRAMS is not set")
	}
	paths, err := filepath.Glob(filepath.Join(made, "*.pt2"))
	if err != nil || len(paths) == 0 {
		b.Fatalf("%s holds no programs: %v", made, err)
	}
	for _, path := range paths {
		name := filepath.Base(path[:len(path)-len(".pt2")])
		b.Run(name, func(b *testing.B) {
			text, err := os.ReadFile(filepath.Join(made, name+".json"))
			if err != nil {
				b.Fatal(err)
			}
			var r record
			if err := json.Unmarshal(text, &r); err != nil {
				b.Fatal(err)
			}
			file, err := safetensors.Open(filepath.Join(made, name+".safetensors"))
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			cgotorch.SetThreads(1)
			stream := cgotorch.DefaultStream(cgotorch.CPU)
			if err := stream.Do(func(x *cgotorch.Exec) error {
				p, err := pt2.Load(x, path, pt2.Options{})
				if err != nil {
					return err
				}
				defer p.Close()
				var args []any
				for _, a := range r.Calls[0].Args {
					args = append(args, values{x, file}.of(b, a))
				}
				keywords := pt2.Keywords{}
				for k, a := range r.Calls[0].Kwargs {
					keywords[k] = values{x, file}.of(b, a)
				}
				args = append(args, keywords)
				y := x.NoGrad()
				b.ReportAllocs()
				for b.Loop() {
					y.Tidy(func() *cgotorch.Tensor { p.Call(y, args...); return nil })
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(p.Nodes())), "ns/node")
				return nil
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}
