//go:build ignore

// Make writes cifar10-10k.tgz, the data of examples/train. It reads CIFAR-10 as two archives of
// 32x32 JPEG files. They are cifar10-train.tgz (train/CLASS/FILE) and cifar10-test.tgz
// (test/CLASS/FILE).
//
//	go run make.go FOLDER-OF-THE-TWO-ARCHIVES
//
// Make takes the first 1,000 training images and the first 200 test images of each class. "First"
// means the order of the archives, which is shuffled. The bytes of the images are copied
// unchanged. The same two archives always give the same file.
package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
)

const (
	output        = "cifar10-10k.tgz"
	trainPerClass = 1000
	testPerClass  = 200
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: go run make.go FOLDER (with cifar10-train.tgz and cifar10-test.tgz)")
	}
	if err := write(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func write(folder string) error {
	f, err := os.Create(output)
	if err != nil {
		return err
	}
	defer f.Close()
	zw, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, part := range []struct {
		split    string
		perClass int
	}{{"train", trainPerClass}, {"test", testPerClass}} {
		n, err := take(tw, filepath.Join(folder, "cifar10-"+part.split+".tgz"), part.perClass)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d images\n", part.split, n)
	}
	return errors.Join(tw.Close(), zw.Close(), f.Close())
}

// take copies the first perClass images of each class from `archive` to tw. It returns the number
// of copied images.
func take(tw *tar.Writer, archive string, perClass int) (int, error) {
	f, err := os.Open(archive)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", archive, err)
	}
	taken, total := map[string]int{}, 0
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, fmt.Errorf("%s: %w", archive, err)
		}
		class := strings.Split(h.Name, "/")[1]
		if taken[class] == perClass {
			continue
		}
		taken[class]++
		total++
		if err := tw.WriteHeader(&tar.Header{Name: h.Name, Mode: 0o644, Size: h.Size, Format: tar.FormatUSTAR}); err != nil {
			return total, err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return total, fmt.Errorf("%s: %s: %w", archive, h.Name, err)
		}
	}
}
