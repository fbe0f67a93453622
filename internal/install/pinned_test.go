package install

import (
	"slices"
	"testing"
)

func TestLock_VersionsFor(t *testing.T) {
	if got, want := Locked().VersionsFor("amd64"), Locked().Versions(); !slices.Equal(got, want) {
		t.Errorf("amd64: got %v, want %v", got, want)
	}
	if got := Locked().VersionsFor("arm64"); !slices.Contains(got, Default) || len(got) >= len(Locked().Versions()) {
		t.Errorf("arm64: got %v, want %s and not all", got, Default)
	}
	if got := Locked().VersionsFor("riscv64"); got != nil {
		t.Errorf("riscv64: got %v", got)
	}
}
