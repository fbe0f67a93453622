package main

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip" // its bytes do not depend on the version of Go

	"github.com/streamtorch/streamtorch/internal/install"
	"github.com/streamtorch/streamtorch/internal/library"
)

// pack writes the files of a folder into an archive. Equal files give equal bytes.
func pack(folder, to string) error {
	file, err := os.Create(to + ".part")
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	var names []string
	for _, pattern := range []string{"*", "licenses/*"} {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := addFile(t, folder, name); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), to)
}

func addFile(t *tar.Writer, folder, path string) error {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(folder, path)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if strings.HasSuffix(name, ".so") {
		mode = 0o755
	}
	header := &tar.Header{Name: name, Mode: mode, Size: int64(len(text)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err = t.Write(text)
	return err
}

// writeSums writes the sums of the archives in a folder to SHA256SUMS.
func writeSums(folder string) error {
	archives, err := filepath.Glob(filepath.Join(folder, "libcgotorch-"+library.Source[:12]+"-*.tar.gz"))
	if err != nil {
		return err
	}
	var names []string
	for _, path := range archives {
		names = append(names, filepath.Base(path))
	}
	return install.WriteSums(folder, names)
}

// contents returns the text that says what is in an archive, and under which licence.
func contents(libraries []string, all []part, arch string) string {
	var text strings.Builder
	text.WriteString("What is in this archive, and under which licence. The licences are in licenses/.\n\n")
	for _, library := range libraries {
		fmt.Fprintf(&text, "%s\n  streamtorch: BSD 3-Clause, streamtorch-LICENSE\n", library)
		switch library {
		case "libcgotorch_decode.so":
			for _, c := range codecs {
				fmt.Fprintf(&text, "  %s, %s-%s\n", c.about, c.name, strings.Join(c.licences, " and "+c.name+"-"))
			}
		case "libcgotorch.so", "libcgotorch_cuda.so":
			text.WriteString("  inline functions of LibTorch's headers: BSD 3-Clause, pytorch-LICENSE\n")
		}
	}
	text.WriteString("\nEach library may have inline functions of these: libstdc++ (GPL 3 with the GCC Runtime Library\n" +
		"Exception 3.1, which asks nothing of a compiled program), glibc's headers (LGPL 2.1, likewise), and\n" +
		"the compiler's runtime of zig (MIT). No library has code of CUDA.\n\nMade from these files, by SHA-256:\n")
	for _, p := range all {
		if p.arch == arch || p.arch == "any" {
			fmt.Fprintf(&text, "  %s  %s\n", p.sha256, p.file())
		}
	}
	return text.String()
}
