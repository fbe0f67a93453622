package install

import (
	"fmt"
	"io"
	"os"
	"time"
)

// A Printer writes what an installer does. On a terminal, progress is one line that changes.
type Printer struct {
	to       io.Writer
	terminal bool
	open     bool // a line of progress has no end yet
	last     time.Time
}

// NewPrinter returns a printer that writes to a file or another writer.
func NewPrinter(to io.Writer) *Printer {
	p := &Printer{to: to}
	if file, ok := to.(*os.File); ok {
		info, err := file.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// Line writes a line.
func (p *Printer) Line(format string, args ...any) {
	p.end()
	fmt.Fprintf(p.to, "streamtorch: "+format+"\n", args...)
}

func (p *Printer) end() {
	if p.open {
		fmt.Fprintln(p.to)
		p.open = false
	}
}

const barWidth = 30

// progress shows how much of a work is done, on a terminal 5 times a second and elsewhere each 5 s.
func (p *Printer) progress(title string, done, whole int64, unit string) {
	every := 5 * time.Second
	if p.terminal {
		every = time.Second / 5
	}
	if time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	if !p.terminal {
		fmt.Fprintf(p.to, "  %s: %d of %d %s\n", title, done, whole, unit)
		return
	}
	bar := make([]byte, barWidth)
	for i := range bar {
		bar[i] = ' '
		if int64(i) < done*barWidth/max(whole, 1) {
			bar[i] = '#'
		}
	}
	fmt.Fprintf(p.to, "\r  [%s] %s: %d of %d %s\033[K", bar, title, done, whole, unit)
	p.open = true
}

// finished writes the last line of a work.
func (p *Printer) finished(format string, args ...any) {
	text := fmt.Sprintf("  "+format, args...)
	if p.terminal {
		fmt.Fprintf(p.to, "\r%s\033[K\n", text)
		p.open = false
		return
	}
	fmt.Fprintln(p.to, text)
}

func megabytes(n int64) int64 { return (n + 999_999) / 1_000_000 }
