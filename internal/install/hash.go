package install

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// digest returns the SHA-256 of a file.
func digest(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	return sum.Sum(nil), err
}

// Hash returns the SHA-256 of a file, as 64 hexadecimal digits.
func Hash(path string) (string, error) {
	sum, err := digest(path)
	return fmt.Sprintf("%x", sum), err
}

// recordHash returns the SHA-256 of a file in the form that a RECORD has.
func recordHash(path string) (string, error) {
	sum, err := digest(path)
	return base64.RawURLEncoding.EncodeToString(sum), err
}

// WriteSums writes SHA256SUMS into a folder: the hashes of its files of these names, a line
// `SHA256  NAME` for each. All users can read it.
func WriteSums(folder string, names []string) error {
	var list strings.Builder
	for _, name := range names {
		sum, err := Hash(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, name)
	}
	path := filepath.Join(folder, sumsFile)
	if err := os.WriteFile(path, []byte(list.String()), 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// sumOf returns the hash of a file in a list of lines `SHA256  NAME`, or "".
func sumOf(list, name string) string {
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name && len(f[0]) == 64 {
			return f[0]
		}
	}
	return ""
}

// A recorded is a file that the RECORD of a wheel names, and that is unpacked.
type recorded struct{ name, hash, size string }

// readRecord reads the RECORD of a wheel.
func readRecord(path string) (all []recorded, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, f := range lines {
		if hash, ok := strings.CutPrefix(f[min(1, len(f)-1)], "sha256="); ok && len(f) == 3 && kept.MatchString(f[0]) {
			all = append(all, recorded{f[0], hash, f[2]})
		}
	}
	return all, nil
}
