package archive

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
)

// findLabels returns the source of an archive's labels. For LabelsFound it reads the beginning of
// the first shard. It then also returns the doubt that labels are from directories, if there is
// one.
func (a *Archive) findLabels() (LabelSource, *Error) {
	o := a.options
	if o.Labels != LabelsFound {
		return o.Labels, nil
	}
	first := a.Shards[0]
	key, class := "", ""
	image, label := false, false
	var doubt *Error
	first.beginning(func(e Entry, content func() string) bool {
		k, what := keyOf(e.Name)
		if e.kind != regularFile || k == "" || hidden(strings.Split(path.Clean(e.Name), "/")) != "" {
			return true
		}
		if k != key && image {
			return false
		}
		if k != key {
			label, doubt = false, nil
		}
		key, class = k, path.Base(path.Dir(e.Name))
		switch {
		case what == "cls":
			label = true
		case what == "json":
			text := content()
			for _, name := range []string{o.LabelField, defaultLabelField, "cls", "class"} {
				switch value, found := fieldOf(text, name); {
				case found && name == o.LabelField:
					label = true
				case value == "" || trimmed(value) == class || doubt != nil:
				case found:
					doubt = first.openLabel(e, "its field %q may be the label of the first image, which is %s by its directory; set Options.Labels.Field to %[1]q", name, Printable(class))
				default:
					doubt = first.openLabel(e, "its field %q may be the label of the first image, and %.40s is no number and no text", name, Printable(value))
				}
			}
		case isImageOf(what):
			image = true
		}
		return true
	})
	switch {
	case image && label:
		return LabelsFromMembers, nil
	case image:
		return LabelsFromDirectories, doubt
	}
	return LabelsFromDirectories, nil
}

// beginning calls f with the first members of a shard, and with a function that reads a small
// member. It ends when f returns false, or after so many members that an image must be among them.
func (s *Shard) beginning(f func(e Entry, content func() string) bool) {
	const many, most = 10_000, 64 << 20 // members, and bytes of a .tgz
	left := many
	if s.format == directory {
		number := -1 // "." has none
		fs.WalkDir(s.root.tree(), ".", func(name string, d fs.DirEntry, err error) error {
			if number++; err != nil || d.IsDir() {
				return nil // the pass through the shard reports the error
			}
			e := Entry{Number: number, Name: name, kind: specialFile}
			if d.Type().IsRegular() {
				e.kind = regularFile
			}
			read := func() string {
				data, err := s.readFile(e, nil)
				if err != nil || len(data) > maxFieldsFile {
					return ""
				}
				return string(data)
			}
			if left--; !f(e, read) || left == 0 {
				return fs.SkipAll
			}
			return nil
		})
		return
	}
	var content io.Reader = io.NewSectionReader(s.file, 0, s.info.Size())
	if s.format == gzipTar {
		z, err := gzip.NewReader(content)
		if err != nil {
			return // the pass through the shard reports the error
		}
		content = io.LimitReader(z, most)
	}
	members := tar.NewReader(content)
	for number := 1; number <= left; number++ {
		h, err := members.Next()
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			number--
			continue
		}
		read := func() string {
			if h.Size > maxFieldsFile {
				return ""
			}
			text, _ := io.ReadAll(members)
			return string(text)
		}
		if !f(Entry{Number: number, Name: h.Name, kind: kindOf(h)}, read) {
			return
		}
	}
}
