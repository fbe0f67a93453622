package library

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Folder has libraries that fit this program.
type Folder struct {
	Path     string
	Manifest Manifest
	rule     rule
}

// Find returns the folder that has a file of this name.
func Find(file string) (Folder, error) {
	p, err := placeOf(file)
	if err != nil {
		return Folder{}, err
	}
	m, err := ReadManifest(filepath.Join(p.folder, ManifestFile))
	if err == nil {
		err = m.check(p.folder)
	}
	if err != nil {
		return Folder{}, fmt.Errorf("%w: %s", err, p.rule.cure())
	}
	return Folder{p.folder, m, p.rule}, nil
}

// A place is a folder in which libraries may lie.
type place struct {
	folder string // for people alone if wrong is not ""
	rule   rule
	wrong  string // why it is not looked into
	named  bool   // the user has named it, and answers for who can write it
	like   string // a file whose owner may own it too
}

// placeOf returns the place that has a file of this name.
func placeOf(file string) (place, error) {
	if err := available(); err != nil {
		return place{}, err
	}
	use.Lock()
	use.looked = true
	program := use.folder
	use.Unlock()
	if folder := variable("STREAMTORCH_LIB"); folder != "" {
		if !filepath.IsAbs(folder) {
			return place{}, fmt.Errorf("STREAMTORCH_LIB=%s is not an absolute path: write it from /", folder)
		}
		return only(folder, file, "STREAMTORCH_LIB="+folder, byVariable)
	}
	if program != "" {
		return only(program, file, program+", which the program names,", byProgram)
	}
	executable, _ := os.Executable() // behind all links
	return first(file, places(executable, clone(), SystemRoot))
}

// only returns a folder, or the one of the libraries in it if it is a root. One must have the file.
func only(folder, file, named string, by rule) (place, error) {
	for _, f := range []string{folder, filepath.Join(folder, "lib", Key())} {
		if has(f, file) {
			return place{folder: f, rule: by, named: true}, nil
		}
	}
	return place{}, fmt.Errorf("%s has no %s: %s", named, file, by.cure())
}

// places returns where libraries may lie, in the order in which the places are tried.
func places(executable, clone, system string) []place {
	var all []place
	if executable != "" {
		folder := filepath.Dir(executable)
		all = append(all, place{folder: folder, rule: beside, like: executable}, place{folder: filepath.Join(folder, "lib"), rule: beside, like: executable})
	}
	if clone != "" {
		all = append(all, place{folder: filepath.Join(clone, "build", "lib"), rule: ofClone})
	}
	root, wrong := userRoot()
	user := place{folder: root, rule: ofUser, wrong: wrong, named: variable("STREAMTORCH_CACHE") != ""}
	if wrong == "" {
		user.folder = filepath.Join(root, "lib", Key())
	}
	return append(all, user, place{folder: filepath.Join(system, "lib", Key()), rule: ofSystem})
}

// first returns the first place that has the file and is not open to strangers.
func first(file string, all []place) (place, error) {
	var tried []string
	for _, p := range all {
		if p.wrong == "" && has(p.folder, file) {
			if p.named {
				return p, nil
			}
			if p.wrong = openToStrangers(p.folder, p.like, file, ManifestFile); p.wrong == "" {
				return p, nil
			}
			p.wrong += ", so it is passed over; STREAMTORCH_LIB can name it all the same"
		}
		if p.wrong != "" {
			p.folder += " (" + p.wrong + ")"
		}
		tried = append(tried, p.folder)
	}
	return place{}, fmt.Errorf("%s is in none of these folders: %s: %s", file, strings.Join(tried, ", "), cure())
}

func has(folder, file string) bool {
	info, err := os.Stat(filepath.Join(folder, file))
	return err == nil && info.Mode().IsRegular()
}

// UserRoot returns the root of this user: $STREAMTORCH_CACHE, or the folder streamtorch in the
// user's cache. It returns "" if the user has none, or if the path is not absolute.
func UserRoot() string {
	root, wrong := userRoot()
	if wrong != "" {
		return ""
	}
	return root
}

// userRoot returns the root of this user, or what is wrong with the variable that should name it.
func userRoot() (root, wrong string) {
	for _, v := range []struct{ name, below string }{{"STREAMTORCH_CACHE", ""}, {"XDG_CACHE_HOME", "streamtorch"}, {"HOME", ".cache/streamtorch"}} {
		value := variable(v.name)
		if value != "" && !filepath.IsAbs(value) {
			return v.name + "=" + value, "it is not an absolute path, write it from /"
		}
		if value != "" {
			return filepath.Join(value, v.below), ""
		}
	}
	return "the user's cache", "HOME is not set"
}

// variable returns a variable of the environment. It returns "" if another user has set the
// environment of this program.
func variable(name string) string {
	if foreign() {
		return ""
	}
	return os.Getenv(name)
}
