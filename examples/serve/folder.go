package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// folder is a model repository: a folder for each model, with a folder for each version.
type folder struct {
	path   string
	root   *os.Root // no path leads out of it, also not by a link
	models *serve.Repository
	opener *opener

	mu      sync.Mutex
	known   map[[2]string]bool // name and version
	skipped map[string]bool    // paths that were told to be no model and no version
}

func openFolder(path string, models *serve.Repository, o *opener) (*folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &folder{path: path, root: root, models: models, opener: o, known: map[[2]string]bool{}, skipped: map[string]bool{}}, nil
}

// Names stand in addresses and in metrics.
var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	versionForm = regexp.MustCompile(`^[0-9]{1,18}$`)
)

// scan makes new models and versions known, and forgets those that are neither there nor loaded.
func (f *folder) scan(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	files := f.root.FS()
	names, err := fs.ReadDir(files, ".")
	if err != nil {
		return err
	}
	there := map[[2]string]bool{}
	for _, n := range names {
		if !f.takes(n, n.Name(), nameForm) {
			continue
		}
		versions, err := fs.ReadDir(files, n.Name())
		if err != nil {
			return err
		}
		for _, v := range versions {
			key := [2]string{n.Name(), v.Name()}
			if !f.takes(v, path.Join(n.Name(), v.Name()), versionForm) {
				continue
			}
			if there[key] = true; f.known[key] {
				continue
			}
			err := f.models.Add(key[0], key[1], func() (*serve.Model, error) { return f.opener.open(files, f.path, key[0], key[1]) })
			if err != nil {
				return err
			}
			f.known[key] = true
		}
	}
	for _, m := range f.models.List() {
		key := [2]string{m.Name, m.Version}
		if there[key] || m.Ready || m.Loading {
			continue
		}
		if err := f.models.Remove(ctx, m.Name, m.Version); err != nil {
			return err
		}
		delete(f.known, key)
	}
	return nil
}

// takes reports whether an entry at a path is a folder with a name of the form, or a link to a
// folder inside the root. It logs once why another folder or link is skipped. The caller holds
// f.mu.
func (f *folder) takes(e fs.DirEntry, at string, form *regexp.Regexp) bool {
	info, err := f.root.Stat(at)
	switch {
	case err == nil && !info.IsDir(): // such as model.json
		return false
	case err == nil && form.MatchString(e.Name()):
		return true
	case err == nil:
		err = fmt.Errorf("its name is not of the form %v", form)
	}
	if !f.skipped[at] {
		f.skipped[at] = true
		f.opener.log("%s in %s is skipped: %v", at, f.path, err)
	}
	return false
}

// loadAll loads the last version of each model. A model that cannot be loaded is told, and the
// others are loaded: the server is not ready then.
func (f *folder) loadAll(ctx context.Context) error {
	if err := f.scan(ctx); err != nil {
		return err
	}
	list := f.models.List()
	if len(list) == 0 {
		return fmt.Errorf("%s has no model: put one into NAME/1/, as %s", f.path, modelFiles[0])
	}
	var names []string
	for _, m := range list {
		names = append(names, m.Name)
	}
	for _, name := range slices.Compact(names) {
		_ = f.models.Load(ctx, name, "") // the Repository logs a failure
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}
