package install

import (
	"context"
	"path/filepath"
)

// Pinned returns the LibTorch of wheels.lock, whatever else is on the machine. It downloads the
// LibTorch if the root lacks it.
func (in *Installer) Pinned(ctx context.Context) (*Torch, error) { return in.fromWheels(ctx) }

// VersionsFor returns the releases of LibTorch whose wheels the lock has for a processor.
func (l *Lock) VersionsFor(processor string) []string {
	var all []string
	for _, r := range l.releases {
		if _, err := l.wheelsOf(processor, r.runtime, r.torch); err == nil {
			all = append(all, r.version)
		}
	}
	return all
}

// Download downloads a file of this SHA-256 to a path, and goes on where it was cut off before.
func (in *Installer) Download(ctx context.Context, from, sha256, to string) error {
	client, err := in.newClient(pipSettings())
	if err != nil {
		return err
	}
	return in.fetch(ctx, client, from, file{title: filepath.Base(to), sha256: sha256}, to)
}
