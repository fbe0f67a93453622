// Package csrc holds the C++ sources of the libraries, for a program that compiles them.
package csrc

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
)

// Files are the sources and their CMakeLists.txt, with the paths that they have in this folder.
//
//go:embed recipe CMakeLists.txt *.map */*.cc */*.h distributed/declared
var Files embed.FS

// Hash returns the SHA-256, as 64 hexadecimal digits, of the files in a folder that the libraries
// are compiled from. It covers their paths and contents, and no file of a test. The folder is this
// one, or Files.
func Hash(folder fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !isSource(path) {
			return err
		}
		text, err := fs.ReadFile(folder, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// isSource reports whether the libraries depend on a file. The file recipe has a number, which
// rises with each change of a release that no other file here shows: of its compiler or its codecs.
func isSource(path string) bool {
	if path == "recipe" || path == "CMakeLists.txt" || strings.HasSuffix(path, ".map") {
		return true
	}
	if strings.Contains(path, "testdata/") || strings.HasSuffix(path, "_test.cc") || strings.HasSuffix(path, "_test.h") {
		return false
	}
	return strings.HasSuffix(path, ".cc") || strings.HasSuffix(path, ".h")
}
