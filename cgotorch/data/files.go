package data

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// FilesOptions are the options of [NewFiles]. The zero value takes every regular file.
type FilesOptions struct {
	Pattern string // of the last element of a path, as in [path.Match], such as "*.wav". "" means every file
	MaxFile int    // bytes above which a file is an error. 0 means 64 MiB
}

// Files is a [Dataset] of the regular files of a file system, sorted by path. A sample has three
// fields:
//
//	"path"   Text             the file's path
//	"data"   Uint8 [Variable] its bytes
//	"label"  Int64            the number of its class, see Classes
//
// A loader reads the files on its workers. A Map usually decodes them there.
type Files struct {
	fsys    fs.FS
	paths   []string
	classes []string
	most    int
}

// NewFiles lists the files of fsys, such as [os.DirFS]. It reads none of them. It fails with
// [ErrInvalidOptions] if no file matches, and with the file system's errors.
func NewFiles(fsys fs.FS, o FilesOptions) (*Files, error) {
	f := &Files{fsys: fsys, most: o.MaxFile}
	if o.MaxFile < 0 || o.MaxFile > maxSample {
		return nil, fmt.Errorf("data: FilesOptions.MaxFile is %d; it is out of range: %w", o.MaxFile, ErrInvalidOptions)
	}
	if o.MaxFile == 0 {
		f.most = 64 << 20
	}
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		match := true
		if o.Pattern != "" {
			match, err = path.Match(o.Pattern, entry.Name())
		}
		if match {
			f.paths = append(f.paths, name)
			f.classes = append(f.classes, classOf(name))
		}
		return err
	})
	if err != nil {
		if errors.Is(err, path.ErrBadPattern) {
			err = fmt.Errorf("FilesOptions.Pattern is %q: %w: %w", o.Pattern, err, ErrInvalidOptions)
		}
		return nil, fmt.Errorf("data: %w", err)
	}
	if len(f.paths) == 0 {
		return nil, fmt.Errorf("data: there is no file %q; check the folder and FilesOptions.Pattern: %w", o.Pattern, ErrInvalidOptions)
	}
	slices.Sort(f.paths)
	slices.Sort(f.classes)
	f.classes = slices.Clip(slices.Compact(f.classes))
	return f, nil
}

// classOf returns the folder of a file.
func classOf(name string) string {
	if at := strings.LastIndexByte(name, '/'); at >= 0 {
		return name[:at]
	}
	return "."
}

// Fields returns the fields of a sample.
func (f *Files) Fields() []Field {
	return []Field{
		{Name: "path", Text: true}, {Name: "data", DType: cgotorch.Uint8, Shape: []int64{Variable}}, {Name: "label", DType: cgotorch.Int64},
	}
}

// Classes returns the folders of the files, sorted. The class of a file is its folder.
func (f *Files) Classes() []string { return slices.Clone(f.classes) }

// Len returns the number of files.
func (f *Files) Len() int { return len(f.paths) }

// Sample reads file i. It fails with an [*Error] if the file cannot be read or is too large.
func (f *Files) Sample(i int) (Sample, error) {
	name := f.paths[i]
	file, err := f.fsys.Open(name)
	if err != nil {
		return nil, &Error{Source: name, Reason: err.Error(), Kind: ErrBadRow, Cause: err}
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, int64(f.most)+1))
	if err != nil {
		return nil, &Error{Source: name, Reason: err.Error(), Kind: ErrBadRow, Cause: err}
	}
	if len(content) > f.most {
		return nil, &Error{Source: name, Reason: fmt.Sprintf("it has more than %d bytes, which is FilesOptions.MaxFile", f.most), Kind: ErrTooLarge}
	}
	label, _ := slices.BinarySearch(f.classes, classOf(name))
	return Sample{"path": name, "data": content, "label": int64(label)}, nil
}
