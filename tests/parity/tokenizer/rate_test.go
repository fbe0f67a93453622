package tokenizer_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// texts are the repository's own texts, in pieces of about 4 kB.
func texts(b *testing.B, extensions ...string) []string {
	var all []string
	must.Do(b, filepath.WalkDir("../../..", func(path string, _ os.DirEntry, err error) error {
		for _, extension := range extensions {
			if err == nil && strings.HasSuffix(path, extension) && !strings.Contains(path, "testdata") {
				data := must.Get(os.ReadFile(path))(b)
				for len(data) > 0 {
					n := min(len(data), 4000)
					all = append(all, strings.ReplaceAll(strings.ToValidUTF8(string(data[:n]), "?"), "\x00", ""))
					data = data[n:]
				}
			}
		}
		return nil
	}))
	return all[:min(len(all), 500)]
}

// BenchmarkTokenizer reports megabytes of text a second on one thread, beside those of Hugging
// Face's library in the same run. $TOKENIZER_REAL lists more tokenizer.json.
func BenchmarkTokenizer(b *testing.B) {
	python := torchtest.Python(b, "tokenizers")
	folder := b.TempDir()
	const trained = 17
	must.Get(exec.Command(python, "peer.py", folder, fmt.Sprint(trained), "1", "1").Output())(b)
	paths := strings.Fields(os.Getenv("TOKENIZER_REAL"))
	for i := range trained {
		paths = append(paths, filepath.Join(folder, fmt.Sprintf("%d.json", i)))
	}
	for name, extension := range map[string]string{"prose": ".md", "code": ".go"} {
		list := texts(b, extension)
		file := filepath.Join(folder, name)
		must.Do(b, os.WriteFile(file, []byte(strings.Join(list, "\x00")), 0o644))
		for _, path := range paths {
			b.Run(fmt.Sprintf("text=%s/file=%s", name, filepath.Base(path)), func(b *testing.B) { beside(b, python, path, file, list) })
		}
	}
}

func beside(b *testing.B, python, path, file string, list []string) {
	t := must.Get(tokenizer.Open(path))(b)
	size := 0
	var ids [][]int64
	for _, s := range list {
		size += len(s)
		ids = append(ids, t.EncodePart(s))
	}
	encode, decode := 0.0, 0.0 // of the best run, as the library's are
	for b.Loop() {
		begin := time.Now()
		for _, s := range list {
			t.EncodePart(s)
		}
		encode = max(encode, float64(size)/time.Since(begin).Seconds()/1e6)
		begin = time.Now()
		for _, i := range ids {
			t.Decode(i)
		}
		decode = max(decode, float64(size)/time.Since(begin).Seconds()/1e6)
	}
	b.StopTimer()
	var theirs [2]float64
	must.Get(fmt.Sscan(string(must.Get(exec.Command(python, "rate.py", path, file).Output())(b)), &theirs[0], &theirs[1]))(b)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(encode, "encode-MB/s")
	b.ReportMetric(theirs[0], "peer-encode-MB/s")
	b.ReportMetric(decode, "decode-MB/s")
	b.ReportMetric(theirs[1], "peer-decode-MB/s")
}
