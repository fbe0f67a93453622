package main

import (
	"archive/zip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/internal/install"
)

// parts has the files of the lock, each unpacked in a folder of its own.
type parts struct {
	cache string
	all   []part
}

// folder returns the folder of an unpacked part. It downloads the part if the cache lacks it.
func (p *parts) folder(name, arch string) (string, error) {
	for _, part := range p.all {
		if part.name != name || part.arch != arch && part.arch != "any" {
			continue
		}
		folder := filepath.Join(p.cache, fmt.Sprintf("%s-%s-%.12s", part.name, part.arch, part.sha256))
		if _, err := os.Stat(folder); err == nil {
			return folder, nil
		}
		archive := filepath.Join(p.cache, part.file())
		if err := download(part, archive); err != nil {
			return "", fmt.Errorf("%s: %w", part.url, err)
		}
		unfinished := folder + ".part"
		if err := os.RemoveAll(unfinished); err != nil {
			return "", err
		}
		if err := unpack(archive, unfinished); err != nil {
			return "", fmt.Errorf("%s cannot be unpacked: %w", archive, err)
		}
		return folder, os.Rename(unfinished, folder)
	}
	return "", fmt.Errorf("release.lock has no %s for %s", name, arch)
}

// download gets a file. A file that is there and has the sum is not downloaded.
func download(p part, to string) error {
	in := &install.Installer{Out: install.NewPrinter(os.Stderr)}
	if err := in.Download(context.Background(), p.url, p.sha256, to); err != nil {
		return fmt.Errorf("%w; check the network, or put the file into %s by hand", err, filepath.Dir(to))
	}
	return nil
}

// unpack unpacks a wheel, a Debian package or an archive of sources.
func unpack(archive, folder string) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	switch filepath.Ext(archive) {
	case ".whl":
		return unzip(archive, folder)
	case ".deb":
		return run(folder, "sh", "-c", `ar p "$1" data.tar.xz | tar -xJf -`, "sh", archive)
	}
	return run(folder, "tar", "-xf", archive)
}

func unzip(archive, folder string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, entry := range z.File {
		if strings.HasSuffix(entry.Name, "/") {
			continue
		}
		in, err := entry.Open()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		to := filepath.Join(folder, filepath.FromSlash(entry.Name))
		if err := write(to, text, entry.Mode().Perm()|0o600); err != nil {
			return err
		}
	}
	return nil
}

// write writes a file, and makes its folder.
func write(path string, text []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, text, mode)
}

// run runs a program in a folder. What the program prints is part of the error. It does not see
// variables of the user such as CXXFLAGS, which would change the bytes of a library.
func run(folder, name string, args ...string) error {
	command := exec.Command(name, args...)
	command.Dir = folder
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "SOURCE_DATE_EPOCH=0", "LC_ALL=C", "TZ=UTC"}
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(text))
	}
	return nil
}

// tail returns the end of a text.
func tail(text []byte) []byte {
	return text[max(0, len(text)-8000):]
}
