package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// runConvert copies the tensors of a file of weights to a file of another format.
func runConvert(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("convert", flag.ContinueOnError)
	strip := flags.String("strip", "", "only the tensors whose names begin with this text, such as model., and without it")
	if code, ok := parse(flags, "[-strip TEXT] IN OUT, each .safetensors, .pth or .pt; IN may be a folder or an index of shards", args, stderr, 2, 2); !ok {
		return code
	}
	n, err := convert(flags.Arg(0), flags.Arg(1), *strip)
	if err != nil {
		return fail(stderr, "convert", err)
	}
	fmt.Fprintf(stdout, "%d tensors\n", n)
	return done
}

func convert(in, out, strip string) (int, error) {
	from, err := pth.OpenWeights(in)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	var tensors []safetensors.Tensor
	for _, t := range from.Tensors() {
		name, ok := strings.CutPrefix(t.Name, strip)
		if !ok || strings.Contains(name, "/") { // a checkpoint's state beside the model
			continue
		}
		if t.Bytes == 0 { // it is empty, or cannot be read
			if _, err := from.Read(t.Name); err != nil {
				return 0, err
			}
		}
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: t.DType, Shape: t.Shape, Read: func() ([]byte, error) { return from.Read(t.Name) }})
	}
	if len(tensors) == 0 {
		return 0, fmt.Errorf("%s: no tensor has a name that begins with %q", in, strip)
	}
	switch filepath.Ext(out) {
	case ".safetensors":
		return len(tensors), safetensors.WriteFile(out, tensors, map[string]string{"format": "pt"})
	case ".pth", ".pt":
		return len(tensors), writePickle(out, tensors)
	}
	return 0, fmt.Errorf("%s: the name must end with .safetensors, .pth or .pt", out)
}

// writePickle writes a file beside `out`, and renames it when it is whole.
func writePickle(out string, tensors []safetensors.Tensor) (err error) {
	file, err := replace.Create(out)
	if err != nil {
		return err
	}
	defer file.Discard()
	buffered := bufio.NewWriterSize(file, 1<<20)
	if err := errors.Join(pth.Write(buffered, tensors), buffered.Flush()); err != nil {
		return err
	}
	return file.Commit()
}
