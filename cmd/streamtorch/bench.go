//go:build cgo

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// benching are the flags of the command bench, and where its table goes.
type benching struct {
	seconds float64
	batch   int
	size    int
	split   string
	workers int
	stepping

	to io.Writer
}

// runBench measures what this machine does: the loader on an archive, and training steps.
func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	b := benching{to: stdout}
	flags.Float64Var(&b.seconds, "seconds", 10, "time for each row of the table; a step that has begun goes on to its end")
	flags.IntVar(&b.batch, "batch", 0, "images a batch; 0: 128, and 8 for a step on the CPU")
	flags.IntVar(&b.size, "size", 0, "height and width of the images; 0: 224, and 32 with the models resnet20 and mlp")
	flags.StringVar(&b.split, "split", "", "only the images in this first folder of the archive, such as train")
	flags.IntVar(&b.workers, "workers", 0, "decode threads; 0: one a core")
	b.flags(flags)
	if code, ok := parse(flags, "[flags] [ARCHIVE]", args, stderr, 0, 1); !ok {
		return code
	}
	if err := b.run(ctx, flags.Arg(0)); err != nil {
		return fail(stderr, "bench", err)
	}
	return done
}

// run measures and prints row after row.
func (b *benching) run(ctx context.Context, archive string) error {
	switch {
	case !(b.seconds > 0 && b.seconds <= 3600):
		return fmt.Errorf("-seconds %v: above 0, and at most 3600", b.seconds)
	case b.batch < 0 || b.size < 0 || b.workers < 0:
		return errors.New("-batch, -size and -workers are at least 0")
	case archive == "" && b.name == "":
		return errors.New("nothing to measure: name an archive, or a -model")
	}
	if b.size == 0 {
		b.size = 224
		if b.name == "resnet20" || b.name == "mlp" {
			b.size = 32
		}
	}
	fmt.Fprintf(b.to, "%-60s %10s\n", "", "images/s")
	if archive != "" {
		if err := b.loader(ctx, archive); err != nil {
			return err
		}
	}
	return b.steps(ctx)
}

func (b *benching) row(what string, rate float64, format string, args ...any) error {
	_, err := fmt.Fprintf(b.to, "%-60s %10s  %s\n", what, perSecond(rate), fmt.Sprintf(format, args...))
	return err
}

// perSecond returns a number of some three digits, with commas.
func perSecond(rate float64) string {
	if rate < 100 {
		return fmt.Sprintf("%.3g", rate)
	}
	text := fmt.Sprintf("%.0f", rate)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func (b *benching) bound() time.Duration { return time.Duration(b.seconds * float64(time.Second)) }

// loader reads an archive as a training does: shuffled, with random crops. The clock starts with
// the first batch.
func (b *benching) loader(ctx context.Context, archive string) error {
	batch := b.batch
	if batch == 0 {
		batch = 128
	}
	began := time.Now()
	loader, err := imageloader.Open(archive, imageloader.Options{
		Train: true, Split: cmp.Or(b.split, "."), BatchSize: batch, Workers: b.workers, Reading: imageloader.Reading{MaxSkipRate: 1},
		Crop: imageloader.Crop{Transform: decode.RandomResizedCrop{Height: b.size, Width: b.size}},
	})
	if err != nil {
		return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "Options.Split", "-split"))
	}
	defer loader.Close()
	var first time.Time
	var start imageloader.Stats
	images := 0
	for over := false; !over; {
		for batch, err := range loader.Epoch(ctx) {
			if err != nil {
				return err
			}
			if first.IsZero() {
				first, start = time.Now(), loader.Stats()
			} else {
				images += batch.N
			}
			batch.Release()
			if over = time.Since(first) >= b.bound() && images > 0; over {
				break
			}
		}
		if first.IsZero() {
			return fmt.Errorf("%s: %w", archive, imageloader.ErrNoImages)
		}
	}
	elapsed, stats := time.Since(first), loader.Stats().Since(start)
	skipped := ""
	if unusable := stats.Unusable(); unusable > 0 {
		skipped = fmt.Sprintf(", %d unusable", unusable)
	}
	return b.row(fmt.Sprintf("loader, %dx%d, batch %d", b.size, b.size, batch), float64(images)/elapsed.Seconds(),
		"bound by %s; %d images%s, first batch after %.2f s", stats.Bottleneck(), images, skipped, first.Sub(began).Seconds())
}
