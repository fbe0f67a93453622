package rules

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// Everything in which the versions of LibTorch differ stands in one file.
func TestVersions_OneFile(t *testing.T) {
	asks := regexp.MustCompile(`TORCH_VERSION_M|CT_LIBTORCH_SINCE|CUDART_VERSION *[<>=]`)
	files := must.Get(filepath.Glob(filepath.Join(root, "csrc/*/*.*")))(t)
	const place = "csrc/core/versions.h"
	var found []string
	for _, file := range files {
		path := must.Get(filepath.Rel(root, file))(t)
		if path = filepath.ToSlash(path); regexp.MustCompile(`\.(cc|h)$`).MatchString(path) && asks.MatchString(document(t, path)) {
			found = append(found, path)
		}
	}
	if !slices.Equal(found, []string{place}) {
		t.Errorf("%v ask for the version of LibTorch or CUDA, want %s alone", found, place)
	}
}

// The table of versions has those with which the library builds, in the same order.
func TestVersions_Documented(t *testing.T) {
	versions := func(path, line string) (all []string) {
		for _, match := range regexp.MustCompile(line).FindAllStringSubmatch(document(t, path), -1) {
			all = append(all, match[1])
		}
		return all
	}
	locked := versions("internal/install/wheels.lock", `(?m)^version +(\S+)`)
	documented := versions("docs/versions.md", `(?m)^\| (\d+\.\d+\.\d+)\b`)
	if len(locked) == 0 || !slices.Equal(documented, locked) {
		t.Errorf("docs/versions.md has %v, wheels.lock has %v", documented, locked)
	}
}
