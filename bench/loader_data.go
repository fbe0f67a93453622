package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/data/parquet"
)

// dataServer is our side of the rows loader/table, loader/csv and loader/parquet. It answers the
// same requests as tables.py.
type dataServer struct {
	loader *data.Loader
	idle   float64 // MiB of the process before it has opened the data
}

// columns returns the columns of the numbers in a file. The label is one more column.
func columns() []string {
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprint("f", i))
	}
	return names
}

// begin counts the memory of the idle process, and begins to count the most memory anew.
func (s *dataServer) begin() (err error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return err
	}
	s.idle, err = processMiB("VmRSS:")
	return err
}

// table opens a table in memory: float32 [Rows, Width], and labels.
func (s *dataServer) table(r request) error {
	if err := s.begin(); err != nil {
		return err
	}
	values, labels := make([]float32, r.Rows*r.Width), make([]int64, r.Rows)
	for i := range values {
		values[i] = rand.Float32()
	}
	for i := range labels {
		labels[i] = rand.Int64N(10)
	}
	t, err := data.NewTable(data.Of("x", values, int64(r.Width)), data.Of("y", labels))
	if err != nil {
		return err
	}
	s.loader, err = data.NewLoader(t, data.Options{BatchSize: r.Batch, Shuffle: true})
	return err
}

// file opens a CSV or Parquet file.
func (s *dataServer) file(r request) (err error) {
	if err := s.begin(); err != nil {
		return err
	}
	fields := []data.Field{
		{Name: "x", DType: cgotorch.Float32, Shape: []int64{8}, From: columns()}, {Name: "label", DType: cgotorch.Int64},
	}
	var rows data.Stream
	if strings.HasSuffix(r.Path, ".csv") {
		rows, err = data.OpenCSV(r.Path, data.CSVOptions{Fields: fields})
	} else {
		rows, err = parquet.Open(r.Path, parquet.Options{Fields: fields})
	}
	if err != nil {
		return err
	}
	s.loader, err = data.NewStreamLoader(rows, data.Options{BatchSize: r.Batch, Shuffle: true})
	return err
}

// samples reads epochs. It returns the samples per second, the processor time of a sample in
// microseconds, and the most MiB of this process above its idle state.
func (s *dataServer) samples(r request) (map[string]any, error) {
	if s.loader == nil {
		return nil, errors.New("samples before table or file")
	}
	began, cpu, n := time.Now(), cpuTime(), 0
	for range r.Count {
		for batch, err := range s.loader.Epoch(context.Background()) {
			if err != nil {
				return nil, err
			}
			n += batch.N
			batch.Release()
		}
	}
	seconds := time.Since(began).Seconds()
	cpu = cpuTime() - cpu
	if n != r.Count*r.Rows {
		return nil, fmt.Errorf("%d epochs had %d samples, want %d", r.Count, n, r.Count*r.Rows)
	}
	peak, err := processMiB("VmHWM:")
	return map[string]any{"samples_per_second": float64(n) / seconds, "cpu": cpu.Seconds() * 1e6 / float64(n), "peak": peak - s.idle}, err
}

func (s *dataServer) close() { _ = s.loader.Close() }

// processMiB returns a line of the process's status in MiB.
func processMiB(name string) (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("the status has no %s", name)
}

// measured is what one side of a row about data has measured, round by round.
type measured struct{ rate, cpu, peak sample }

// samplesOf returns a side that reads `count` epochs of `rows` samples.
func (m *measured) samplesOf(p *peer, count, rows int) side {
	return func() (float64, error) {
		var reply struct {
			Rate float64 `json:"samples_per_second"`
			CPU  float64
			Peak float64
		}
		err := p.do(&reply, "samples", "count", count, "rows", rows)
		m.rate, m.cpu, m.peak = append(m.rate, reply.Rate), append(m.cpu, reply.CPU), append(m.peak, reply.Peak)
		return reply.Rate, err
	}
}

// compare reads epochs by both processes in turns, and emits three rows: rate, processor time and
// memory.
func (c *config) compare(name, peerName, note string, own, other *peer, count, rows int, emit func(row)) error {
	var ours, theirs measured
	values, err := interleave(c.roundsOr(5), ours.samplesOf(own, count, rows), theirs.samplesOf(other, count, rows))
	if err != nil {
		return err
	}
	note = fmt.Sprintf("%s; %d epochs in a block; ours %v; peer %v; %s, %s", note, count, values[0], values[1], own.versions, other.versions)
	emit(inTurns(name, values[0], "samples/s", peerName, values[1], higher, note))
	emit(inTurns(name+"/cpu", ours.cpu[1:], "us of processor time a sample", peerName, theirs.cpu[1:], lower, note))
	emit(against(name+"/memory", ours.peak.max(), "MiB", peerName, theirs.peak.max(), lower,
		"the most memory of the process above its idle state, the data themselves included; "+note))
	return nil
}

// benchTable compares epochs of a shuffled table in memory.
func benchTable(c *config, emit func(row)) error {
	rows, width, batch := c.or(600, 60_000), 784, 128
	own, err := c.startOwn()
	if err != nil {
		return err
	}
	defer own.close()
	other, err := c.startPeer("tables.py", switches{})
	if err != nil {
		return err
	}
	defer other.close()
	for _, p := range []*peer{own, other} {
		if err := p.do(nil, "table", "rows", rows, "width", width, "batch", batch); err != nil {
			return err
		}
	}
	workers, err := other.bestWorkers(c, false)
	if err != nil {
		return err
	}
	return c.compare("loader/table", "DataLoader of a TensorDataset", fmt.Sprintf("%d samples of %d float32 and a label, in memory, shuffled, batch %d; peer %d workers, the best of those tried", rows, width, batch, workers),
		own, other, c.or(1, 4), rows, emit)
}

// benchFile compares epochs of a file, from its opening to the last shuffled batch.
func benchFile(kind string) func(c *config, emit func(row)) error {
	return func(c *config, emit func(row)) error {
		rows, batch := c.or(10_000, 10_000_000), 1024
		folder, err := os.MkdirTemp("", "bench-tables-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		path := filepath.Join(folder, "table.csv")
		if err := writeCSV(path, rows); err != nil {
			return err
		}
		other, err := c.startPeer("tables.py", switches{})
		if err != nil {
			return err
		}
		defer other.close()
		own, err := c.startOwn()
		if err != nil {
			return err
		}
		defer own.close()
		if kind == "parquet" {
			whole := strings.TrimSuffix(path, ".csv") + ".parquet"
			if err := other.do(nil, "to_parquet", "csv", path, "parquet", whole); err != nil {
				return err
			}
			path = whole
		}
		var reply struct{ Pyarrow string }
		err = errors.Join(own.do(nil, "file", "path", path, "batch", batch), other.do(&reply, "file", "path", path, "batch", batch))
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%d rows of 8 float32 and a label, %d MiB, in the page cache; each epoch reads the file and gives shuffled batches of %d; ours in windows of 65,536 rows, the peer's all rows, by index_select of a permutation; pyarrow %s",
			rows, info.Size()>>20, batch, reply.Pyarrow)
		return c.compare("loader/"+kind, "pyarrow and index_select", note, own, other, 1, rows, emit)
	}
}

// writeCSV writes rows of eight random numbers and a label.
func writeCSV(path string, rows int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	fmt.Fprintf(w, "%s,label\n", strings.Join(columns(), ","))
	random := rand.New(rand.NewPCG(1, 2))
	var line []byte
	for range rows {
		line = line[:0]
		for range 8 {
			line = append(strconv.AppendFloat(line, 4*random.Float64()-2, 'f', 5, 64), ',')
		}
		line = append(strconv.AppendInt(line, random.Int64N(10), 10), '\n')
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return w.Flush()
}
