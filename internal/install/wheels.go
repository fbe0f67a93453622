package install

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// tree returns a folder in which the wheels of these sets are unpacked. It downloads those that are
// missing. `held` is the root whose lock the caller has, or "".
func (in *Installer) tree(ctx context.Context, held, prefix string, sets ...string) (string, error) {
	wheels, err := in.Lock.wheelsOf(in.processor(), sets...)
	if err != nil {
		return "", err
	}
	name := treeName(prefix, wheels)
	if root := in.rootPath(); root != "" && isWhole(filepath.Join(root, name), wheels) {
		return filepath.Join(root, name), nil
	}
	tree := ""
	fill := func(root string) error {
		tree = filepath.Join(root, name)
		return in.makeTree(ctx, root, tree, wheels)
	}
	if held != "" {
		err = fill(held)
	} else {
		err = in.locked(ctx, fill)
	}
	return tree, err
}

// makeTree makes a tree in a folder of work, and gives it its name. The caller has the lock.
func (in *Installer) makeTree(ctx context.Context, root, tree string, wheels []wheel) error {
	if isWhole(tree, wheels) {
		return nil
	}
	work, remove, err := workFolder(root)
	if err != nil {
		return err
	}
	defer remove()
	if err := in.fetchWheels(ctx, root, work, wheels); err != nil {
		return err
	}
	if err := linkTree(root, filepath.Join(work, "tree"), tree, wheels); err != nil || !in.Shared {
		return err
	}
	// A root for all users is copied into images, where hard links become copies.
	for _, w := range wheels {
		os.RemoveAll(w.folder(root))
	}
	return nil
}

// isWhole reports whether a tree has all files of its wheels, with the sizes of their RECORDs. A
// cleaner of the cache may have deleted some. A tree of an old tool has no RECORD, so its libraries
// are read.
func isWhole(tree string, wheels []wheel) bool {
	entries, err := fs.Glob(os.DirFS(tree), "nvidia/*/include")
	if err != nil || len(entries) == 0 {
		return false
	}
	if records := recordsIn(tree); len(records) > 0 {
		return len(records) == len(wheels) && hasFiles(tree, records)
	}
	if !slices.ContainsFunc(wheels, func(w wheel) bool { return strings.HasPrefix(w.set, "torch") }) {
		return true
	}
	for _, name := range []string{"libtorch_cpu.so", "libc10.so", "libtorch.so", "libgomp*"} {
		found, _ := fs.Glob(os.DirFS(tree), "torch/lib/"+name)
		if len(found) == 0 || isSound(filepath.Join(tree, found[0])) != nil {
			return false
		}
	}
	return true
}

func recordsIn(folder string) []string {
	found, _ := fs.Glob(os.DirFS(folder), "*.dist-info/RECORD")
	return found
}

// hasFiles reports whether a folder has what is kept of the files that RECORDs name.
func hasFiles(folder string, records []string) bool {
	for _, record := range records {
		files, err := readRecord(filepath.Join(folder, record))
		if err != nil || len(files) == 0 {
			return false
		}
		for _, f := range files {
			if info, err := os.Stat(filepath.Join(folder, f.name)); err != nil || fmt.Sprint(info.Size()) != f.size {
				return false
			}
		}
	}
	return true
}

// isUnpacked reports whether a root has a wheel, unpacked and whole.
func (w wheel) isUnpacked(root string) bool {
	records := recordsIn(w.folder(root))
	return len(records) > 0 && hasFiles(w.folder(root), records)
}

func (w wheel) title() string { return w.name + " " + w.version }

// folder is where a root has the wheel, unpacked.
func (w wheel) folder(root string) string {
	return filepath.Join(root, "wheels", w.name+"-"+w.version+"-"+w.sha256[:12])
}

// part is where a root has the wheel while it is downloaded.
func (w wheel) part(root string) string {
	return filepath.Join(root, "tmp", w.name+"-"+w.version+"-"+w.sha256[:12]+".whl")
}

// fetchWheels downloads and unpacks the wheels that a root lacks.
func (in *Installer) fetchWheels(ctx context.Context, root, work string, wheels []wheel) error {
	var missing []wheel
	var total, unpacked, peak int64
	for _, w := range wheels {
		if w.isUnpacked(root) {
			continue
		}
		missing = append(missing, w)
		total += w.bytes
		peak = max(peak, unpacked+w.bytes-sizeOf(w.part(root)+".part")-sizeOf(w.part(root))+w.unpacked)
		unpacked += w.unpacked
	}
	if len(missing) == 0 {
		return nil
	}
	free, err := freeBytes(root)
	if err != nil {
		return err
	}
	if peak += peak / 50; free < peak {
		return fmt.Errorf("%s has %d MB free, and %d MB are needed; free some, or set STREAMTORCH_CACHE, or -prefix, to a folder on another disk",
			root, megabytes(free), megabytes(peak))
	}
	in.Out.Line("downloading LibTorch, %d MB in %d files, into %s, where it takes %d MB", megabytes(total), len(missing), root, megabytes(unpacked))
	settings := pipSettings()
	if in.Index != "" {
		settings.indexes = []string{in.Index}
	} else if settings.noIndex {
		return errors.New("no-index is set in pip's configuration, so there is no package index to ask; give one with -index")
	}
	client, err := in.newClient(settings)
	if err != nil {
		return err
	}
	for _, w := range missing {
		if err := in.fetchWheel(ctx, client, settings.indexes, root, work, w); err != nil {
			return err
		}
	}
	return nil
}

// fetchWheel downloads and unpacks one wheel.
func (in *Installer) fetchWheel(ctx context.Context, client *http.Client, indexes []string, root, work string, w wheel) error {
	path := w.part(root)
	if !hasSum(path, w.sha256) {
		if err := in.askAll(ctx, client, indexes, w, path); err != nil {
			return err
		}
	}
	to := filepath.Join(work, "unpacked")
	if err := unpackWheel(path, to); err != nil {
		os.RemoveAll(to)
		if errors.Is(err, syscall.ENOSPC) { // the wheel stays for the next install
			return fmt.Errorf("%s cannot be unpacked: %w", w.title(), full(root))
		}
		os.Remove(path)
		return fmt.Errorf("%s cannot be unpacked: %w; run this again", w.title(), err)
	}
	if err := place(to, w.folder(root)); err != nil {
		return unwritable(root, err)
	}
	return os.Remove(path)
}

// askAll downloads a wheel from the first index that sends it. If none does, the error has the
// reason of each.
func (in *Installer) askAll(ctx context.Context, client *http.Client, indexes []string, w wheel, path string) error {
	var all error
	for _, index := range indexes {
		from, err := in.urlOf(ctx, client, index, w)
		if err == nil {
			err = in.fetch(ctx, client, from, file{w.title(), w.bytes, w.sha256}, path)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: stopped; the next install goes on from here", w.title())
		case errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrRoot):
			return fmt.Errorf("%s: %w", w.title(), err)
		}
		if err = failedIndex(index, err); all != nil {
			err = fmt.Errorf("%w, and %w", all, err)
		}
		all = err
	}
	return fmt.Errorf("%s: %w; check the network, the proxy, and -index or pip's index-url, which must mirror PyPI, and run this again, or set LIBTORCH to an unpacked LibTorch %s",
		w.title(), all, in.wanted())
}

// failedIndex returns the error for an index that has not sent a wheel.
func failedIndex(index string, err error) error {
	where := "the package index " + printable(index)
	switch wrong := (*wrongSum)(nil); {
	case errors.Is(err, errIndex) || errors.Is(err, errRefused):
		return fmt.Errorf("%s: %w", where, err)
	case errors.As(err, &wrong) || errors.Is(err, errPage):
		return fmt.Errorf("%s sent a file that is not the file that wheels.lock names (%w)", where, err)
	case errors.Is(err, errStatus):
		return fmt.Errorf("%s does not have it (%w)", where, err)
	}
	return fmt.Errorf("%s cannot be reached (%w)", where, err)
}

// wanted is the release of LibTorch that would be downloaded.
func (in *Installer) wanted() string {
	if in.Version != "" {
		return in.Version
	}
	return Default
}

// kept are the files of a wheel that the libraries and their users need: no Python.
var kept = regexp.MustCompile(`^(torch|nvidia/[^/]+)/(lib|include)/|^[^/]+\.dist-info/(licenses/|RECORD$)|^nvidia/[^/]+/LICENSE`)

// unpackWheel unpacks the libraries, headers and licences of a wheel into a new folder, and the
// list of their hashes.
func unpackWheel(path, to string) error {
	archive, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer archive.Close()
	for _, f := range archive.File {
		if !kept.MatchString(f.Name) || strings.HasSuffix(f.Name, "/") {
			continue
		}
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("it has a file %q outside of its folder", f.Name)
		}
		from, err := f.Open()
		if err != nil {
			return err
		}
		err = writeFile(filepath.Join(to, f.Name), from, 0o644)
		from.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// writeFile writes a new file, which all users can read, and the folders above it.
func writeFile(path string, from io.Reader, mode os.FileMode) error {
	if err := makeReadable(filepath.Dir(path)); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, from, make([]byte, 1<<20))
	return errors.Join(err, out.Chmod(mode), out.Close())
}

// makeReadable makes folders that all users can read, whatever the umask is.
func makeReadable(folder string) error {
	if _, err := os.Stat(folder); err == nil {
		return nil
	}
	if err := makeReadable(filepath.Dir(folder)); err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	return os.Chmod(folder, 0o755)
}

// linkTree makes a tree of hard links to the unpacked wheels. Where the disk has none, it copies.
func linkTree(root, work, tree string, wheels []wheel) error {
	for _, w := range wheels {
		from := w.folder(root)
		err := filepath.WalkDir(from, func(path string, entry os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rest, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			to := filepath.Join(work, rest)
			if entry.IsDir() {
				return makeReadable(to)
			}
			if os.Link(path, to) == nil {
				return nil
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			return writeFile(to, file, 0o644)
		})
		if errors.Is(err, syscall.ENOSPC) {
			return full(root)
		}
		if err != nil {
			return fmt.Errorf("%s cannot be made: %w", tree, err)
		}
	}
	return place(work, tree)
}
