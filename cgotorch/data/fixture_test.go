package data

import (
	"context"
	"fmt"
	"hash/crc32"
	"iter"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// numbered returns a table of n samples: "id" is the number, "square" has two elements, and
// "list" has id%4 elements.
func numbered(t testing.TB, n int) *Table {
	t.Helper()
	ids, squares, lists, names := make([]int64, n), make([]float32, 2*n), make([][]int32, n), make([]string, n)
	for i := range n {
		ids[i], squares[2*i], squares[2*i+1] = int64(i), float32(i), float32(i*i)
		lists[i] = make([]int32, i%4)
		for k := range lists[i] {
			lists[i][k] = int32(10*i + k)
		}
		names[i] = fmt.Sprint("s", i)
	}
	table, err := NewTable(Of("id", ids), Of("square", squares, 2), OfRows("list", lists), Of("name", names))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// streamed is a table as a stream of rows, `block` rows at a time.
type streamed struct {
	*Table
	block int
}

func (s streamed) Read(ctx context.Context, from int64) iter.Seq2[*Rows, error] {
	return func(yield func(*Rows, error) bool) {
		for at := int(from); at < s.Len(); at += s.block {
			rows := newRows(s.Fields(), 0)
			rows.take(&s.rows, at, min(at+s.block, s.Len()))
			if !yield(rows, nil) {
				return
			}
		}
	}
}

// fetched is a table without its rows, so that a loader reads each sample.
type fetched struct{ Dataset }

func open(t testing.TB, set any, o Options) *Loader {
	t.Helper()
	var l *Loader
	var err error
	if stream, ok := set.(Stream); ok {
		l, err = NewStreamLoader(stream, o)
	} else {
		l, err = NewLoader(set.(Dataset), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// line is a batch as text, with everything that it holds, or with a checksum of it.
func line(b *Batch) string {
	text := fmt.Sprintf("%d/%d n%d", b.Epoch, b.Index, b.N)
	for _, c := range b.Columns {
		text += fmt.Sprintf(" %s%v", c.Name, c.Shape)
		if len(c.Data) > 1<<12 {
			text += fmt.Sprint(crc32.ChecksumIEEE(c.Data))
		} else if c.Text {
			text += fmt.Sprint(c.Texts())
		} else {
			text += fmt.Sprint(c.Data)
		}
	}
	return text
}

// epoch reads one epoch. It returns the batches as text, and their states.
func readEpoch(t testing.TB, l *Loader) (lines []string, ids []int64, states []State) {
	t.Helper()
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		lines, states = append(lines, line(b)), append(states, b.State)
		if c := b.Column("id"); c.N > 0 {
			ids = append(ids, Values[int64](c)...)
		}
		b.Release()
	}
	return lines, ids, states
}
