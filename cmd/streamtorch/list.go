//go:build cgo

package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/inflate"
)

// runList prints the size and the name of each member.
func runList(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("ls", flag.ContinueOnError)
	if code, ok := parse(flags, "ARCHIVE", args, stderr, 1, 1); !ok {
		return code
	}
	out := bufio.NewWriter(stdout)
	err := list(ctx, flags.Arg(0), func(name string, size int64) error {
		_, err := fmt.Fprintf(out, "%12d %q\n", size, name)
		return err
	})
	if err := errors.Join(err, out.Flush()); err != nil {
		return fail(stderr, "ls", err)
	}
	return done
}

// list calls f for each regular file of a .tgz, a .tar or a folder, in its order.
func list(ctx context.Context, path string, f func(name string, size int64) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fs.WalkDir(os.DirFS(path), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			return errors.Join(f(name, info.Size()), ctx.Err())
		})
	}
	zipped := inflate.NewReader(ctx, file, info.Size(), inflate.Options{})
	defer zipped.Close()
	var content io.Reader = zipped
	magic := make([]byte, 2)
	if n, err := file.ReadAt(magic, 0); err != nil || n < 2 || magic[0] != 0x1f || magic[1] != 0x8b {
		content = file
	}
	if info.Size() == 0 {
		return fmt.Errorf("%s: empty file (0 bytes)", path)
	}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if err == io.EOF {
			if _, err := io.Copy(io.Discard, content); err != nil { // the checksum comes last
				return fmt.Errorf("%s: damaged: %w", path, err)
			}
			return ctx.Err()
		} else if err != nil {
			return fmt.Errorf("%s: neither a .tgz nor a .tar, or damaged: %w", path, err)
		}
		if header.Typeflag == tar.TypeReg {
			if err := f(header.Name, header.Size); err != nil {
				return err
			}
		}
	}
}

// runLabels prints the number and the name of each class.
func runLabels(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("labels", flag.ContinueOnError)
	split := flags.String("split", "", "only the images in this first folder, such as train")
	if code, ok := parse(flags, "[-split NAME] ARCHIVE", args, stderr, 1, 1); !ok {
		return code
	}
	classes, err := classesOf(flags.Arg(0), *split)
	if err != nil {
		return fail(stderr, "labels", err)
	}
	for i, name := range classes {
		fmt.Fprintf(stdout, "%d\t%s\n", i, name)
	}
	return done
}

// classesOf opens an archive as training does, and so also writes its index file.
func classesOf(path, split string) ([]string, error) {
	loader, err := imageloader.Open(filepath.Clean(path), imageloader.Options{
		BatchSize: 1, Split: split, Reading: imageloader.Reading{MaxSkipRate: 1}, Workers: 1, Crop: imageloader.Crop{Transform: decode.Resize{Height: 8, Width: 8}},
	})
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	return loader.Classes(), nil
}
