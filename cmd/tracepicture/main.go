// Tracepicture draws a trace of kernels and copies as an SVG picture, with a lane for each
// stream.
//
//	make train ARGS="-trace trace.json"
//	go run ./cmd/tracepicture -o picture.svg trace.json
//
// Its input is the JSON that WriteChrome of package cgotorch/trace writes. The flags -from and
// -for choose the time window of the picture. Without these flags the picture shows three
// consecutive steps: those with the most busy time of all streams together per millisecond.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

func main() {
	out := flag.String("o", "", "the SVG file; empty: standard output")
	from := flag.Float64("from", -1, "where the window begins, in ms from the first work of the trace; below 0: three steps are found")
	length := flag.Float64("for", 0, "how long the window is, in ms; 0: to the end of the trace, or three steps")
	caption := flag.String("caption", "", "the text below the picture; empty: figures of the window")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: tracepicture [-o picture.svg] [-from ms] [-for ms] [-caption text] trace.json")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *out, *from, *length, *caption); err != nil {
		fmt.Fprintln(os.Stderr, "tracepicture:", err)
		os.Exit(1)
	}
}

func run(in, out string, from, length float64, caption string) error {
	text, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	t, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	w, err := t.window(from, length)
	if err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	var picture bytes.Buffer
	t.draw(&picture, w, caption)
	if out == "" {
		_, err = os.Stdout.Write(picture.Bytes())
		return err
	}
	return os.WriteFile(out, picture.Bytes(), 0o644)
}
