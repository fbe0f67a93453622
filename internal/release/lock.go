package main

import (
	_ "embed"
	"fmt"
	"net/url"
	"path"
	"strings"
)

//go:embed release.lock
var lockText string

// A part is a file to download.
type part struct {
	name   string
	arch   string // amd64, arm64 or any
	sha256 string
	use    string // tool, headers, names or inside
	url    string
}

// file returns the name of the part's file, as it was published.
func (p part) file() string {
	name, err := url.PathUnescape(path.Base(p.url))
	if err != nil {
		return path.Base(p.url)
	}
	return name
}

// parseLock reads the text of a release.lock.
func parseLock(text string) ([]part, error) {
	var all []part
	for n, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 5 || len(f[2]) != 64 || !strings.Contains(f[4], "://") {
			return nil, fmt.Errorf("release.lock: line %d: %q is not NAME ARCH SHA256 USE ADDRESS", n+1, line)
		}
		all = append(all, part{f[0], f[1], f[2], f[3], f[4]})
	}
	return all, nil
}
