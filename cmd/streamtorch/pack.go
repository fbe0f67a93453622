//go:build cgo

package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/klauspost/pgzip"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// packing are the flags of the command pack.
type packing struct {
	list    string
	shards  int
	shuffle uint64
	resize  int
	quality int
	level   int
	index   bool
}

// An input is a file that goes into an archive.
type input struct {
	name string // in the archive
	path string // on the disk
}

// runPack writes archives of images.
func runPack(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("pack", flag.ContinueOnError)
	var p packing
	flags.StringVar(&p.list, "list", "", "a file with a line PATH<TAB>CLASS for each image, or PATH<TAB>SPLIT/CLASS, in place of folders")
	flags.IntVar(&p.shards, "shards", 1, "archives to write; OUT-000.tgz and so on if there are several")
	flags.Uint64Var(&p.shuffle, "shuffle", 0, "seed of a random order; 0: the order of the names")
	flags.IntVar(&p.resize, "resize", 0, "shrink the shorter side of larger images to this many pixels, and store them as JPEG")
	flags.IntVar(&p.quality, "quality", 95, "quality of those JPEG files, 1 to 100")
	flags.IntVar(&p.level, "level", 6, "compression of a .tgz, 1 to 9")
	flags.BoolVar(&p.index, "index", true, "write an index file beside each .tgz, so that no program has to scan it")
	if code, ok := parse(flags, "[flags] OUT.tgz|OUT.tar FOLDER...", args, stderr, 1, -1); !ok {
		return code
	}
	began := time.Now()
	n, err := p.run(ctx, flags.Arg(0), flags.Args()[1:])
	if err != nil {
		return fail(stderr, "pack", err)
	}
	fmt.Fprintf(stdout, "%d images in %.1f s\n", n, time.Since(began).Seconds())
	return done
}

// run writes the archives and returns the number of images.
func (p *packing) run(ctx context.Context, out string, folders []string) (int, error) {
	extension := ".tgz"
	for _, e := range []string{".tar", ".tgz", ".tar.gz"} {
		if strings.HasSuffix(out, e) {
			extension = e
		}
	}
	base, ok := strings.CutSuffix(out, extension)
	switch {
	case !ok:
		return 0, fmt.Errorf("%s: the name must end with .tgz, .tar.gz or .tar", out)
	case p.shards < 1 || p.quality < 1 || p.quality > 100 || p.level < 1 || p.level > 9 || p.resize < 0:
		return 0, errors.New("-shards, -quality, -level or -resize is out of its range; see streamtorch pack -h")
	case (p.list == "") == (len(folders) == 0):
		return 0, errors.New("give folders, or -list, and not both")
	}
	inputs, err := p.inputs(folders)
	if err != nil {
		return 0, err
	}
	if p.shuffle != 0 {
		rand.New(rand.NewPCG(p.shuffle, 0)).Shuffle(len(inputs), func(i, k int) { inputs[i], inputs[k] = inputs[k], inputs[i] })
	}
	shards := min(p.shards, len(inputs))
	for i := range shards {
		name := base + extension
		if p.shards > 1 {
			name = fmt.Sprintf("%s-%03d%s", base, i, extension)
		}
		part := inputs[len(inputs)*i/shards : len(inputs)*(i+1)/shards]
		if err := p.write(ctx, name, extension != ".tar", part); err != nil {
			return 0, err
		}
		if p.index && extension != ".tar" {
			if _, err := classesOf(name, ""); err != nil {
				return 0, fmt.Errorf("the archive is written, but not its index: %w", err)
			}
		}
	}
	return len(inputs), nil
}

// inputs returns the images in the order of their names. It refuses names that a loader would
// refuse.
func (p *packing) inputs(folders []string) ([]input, error) {
	var all []input
	labels := ""
	for _, folder := range folders {
		found, text, err := inFolder(folder)
		if err != nil {
			return nil, err
		}
		all, labels = append(all, found...), cmp.Or(labels, text)
	}
	if p.list != "" {
		found, err := inList(p.list)
		if err != nil {
			return nil, err
		}
		all = found
	}
	if len(all) == 0 {
		return nil, errors.New("there are no images: they must lie in FOLDER/CLASS/FILE or FOLDER/SPLIT/CLASS/FILE, with a name such as a.jpg")
	}
	class := func(in input) string { return path.Base(path.Dir(in.name)) }
	if labels != "" && !slices.ContainsFunc(all, func(in input) bool { return class(in) != class(all[0]) }) && p.list == "" {
		return nil, fmt.Errorf("all images are of one class, %s, and %s may hold their labels: give them with -list", class(all[0]), labels)
	}
	slices.SortStableFunc(all, func(a, b input) int { return strings.Compare(a.name, b.name) })
	for i, in := range all {
		if i > 0 && in.name == all[i-1].name {
			return nil, fmt.Errorf("%s and %s would both be %s in the archive: rename one of them", all[i-1].path, in.path, in.name)
		}
		if directories := strings.Count(in.name, "/"); directories < 1 || directories > 2 {
			return nil, fmt.Errorf("%s: the image has no class; it must lie in FOLDER/CLASS or FOLDER/SPLIT/CLASS", in.path)
		}
		if !utf8.ValidString(path.Dir(in.name)) {
			return nil, fmt.Errorf("%s: the name of its folder is not UTF-8: rename the folder", in.path)
		}
	}
	if p.resize > 0 { // then a.png may become a.jpg
		small := map[string]string{}
		for _, in := range all {
			name := smallName(in.name)
			if other, taken := small[name]; taken {
				return nil, fmt.Errorf("%s and %s may both become %s in the archive: rename one of them", other, in.path, name)
			}
			small[name] = in.path
		}
	}
	return all, nil
}

// isImage reports whether the extension is one that a loader reads.
func isImage(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp":
		return !strings.HasPrefix(path.Base(name), ".")
	}
	return false
}

// isHidden reports whether loaders pass over a folder.
func isHidden(folder string) bool { return strings.HasPrefix(folder, ".") || folder == "__MACOSX" }

// inFolder returns the images of a folder, and the first file that may hold labels.
func inFolder(folder string) (found []input, text string, err error) {
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		full := filepath.Join(folder, filepath.FromSlash(name))
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", full, err)
		case d.Type()&fs.ModeSymlink != 0:
			return fmt.Errorf("%s is a link: pack the folder that it leads to, or remove it", full)
		case d.IsDir() && name != "." && isHidden(d.Name()):
			return fs.SkipDir // no loader reads hidden folders
		case d.Type().IsRegular() && isImage(name):
			found = append(found, input{name, full})
		case d.Type().IsRegular() && strings.EqualFold(path.Ext(name), ".cls") && !strings.HasPrefix(d.Name(), "."):
			return fmt.Errorf("%s is a label of a WebDataset, and pack takes labels from folders alone: use tar --sort=name, or -list", full)
		case d.Type().IsRegular() && slices.Contains([]string{".json", ".txt", ".csv"}, strings.ToLower(path.Ext(name))):
			text = cmp.Or(text, full)
		}
		return nil
	})
	return found, text, err
}

func inList(list string) ([]input, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	var found []input
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		file, class, ok := strings.Cut(strings.TrimSuffix(line, "\r"), "\t")
		switch {
		case !ok:
			return nil, fmt.Errorf("%s: line %d: %q is not PATH<TAB>CLASS", list, i+1, line)
		case !fs.ValidPath(class) || class == ".":
			return nil, fmt.Errorf("%s: line %d: the class %q is empty, or leads out of the archive", list, i+1, class)
		case slices.ContainsFunc(strings.Split(class, "/"), isHidden):
			return nil, fmt.Errorf("%s: line %d: loaders pass over the class %q, because its name is that of a hidden folder: rename it", list, i+1, class)
		case !isImage(filepath.ToSlash(file)):
			return nil, fmt.Errorf("%s: line %d: %s is no image by its name", list, i+1, file)
		}
		found = append(found, input{class + "/" + filepath.Base(file), file})
	}
	return found, nil
}

// write writes one archive beside `out`, and renames it when it is whole. Equal images and flags
// give equal bytes, on any number of cores.
func (p *packing) write(ctx context.Context, out string, zip bool, inputs []input) (err error) {
	file, err := replace.Create(out)
	if err != nil {
		return err
	}
	defer file.Discard()
	buffered := bufio.NewWriterSize(file, 1<<20)
	var to io.Writer = buffered
	finish := func() error { return nil }
	if zip {
		z, err := pgzip.NewWriterLevel(buffered, p.level)
		if err != nil {
			return err
		}
		if err := z.SetConcurrency(1<<20, runtime.GOMAXPROCS(0)); err != nil {
			return err
		}
		to, finish = z, z.Close
	}
	archive := tar.NewWriter(to)
	for content, err := range p.contents(ctx, inputs) {
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: content.name, Mode: 0o644, Size: int64(len(content.data)), ModTime: time.Unix(0, 0)}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", content.name, err)
		}
		if _, err := archive.Write(content.data); err != nil {
			return err
		}
	}
	if err := errors.Join(archive.Close(), finish(), buffered.Flush()); err != nil {
		return err
	}
	return file.Commit()
}

// A content is a member of an archive.
type content struct {
	name string
	data []byte
}

// contents yields the members in the order of inputs. Several goroutines read and shrink the files
// ahead.
func (p *packing) contents(ctx context.Context, inputs []input) func(yield func(content, error) bool) {
	return func(yield func(content, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		type result struct {
			content
			err error
		}
		const ahead = 4 // files a core
		workers := runtime.GOMAXPROCS(0)
		order := make(chan chan result, ahead*workers)
		work := make(chan func(), workers)
		for range workers {
			go func() {
				for f := range work {
					f()
				}
			}()
		}
		go func() {
			defer close(work)
			defer close(order)
			for _, in := range inputs {
				r := make(chan result, 1)
				select {
				case order <- r:
				case <-ctx.Done():
					return
				}
				work <- func() {
					c, err := p.content(in)
					r <- result{c, err}
				}
			}
		}()
		for r := range order {
			got := <-r
			if err := ctx.Err(); err != nil {
				got.err = context.Cause(ctx)
			}
			if !yield(got.content, got.err) || got.err != nil {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(content{}, context.Cause(ctx))
		}
	}
}

// content reads a file, and shrinks the image if the flags say so.
func (p *packing) content(in input) (content, error) {
	data, err := os.ReadFile(in.path)
	if err != nil || p.resize == 0 {
		return content{in.name, data}, err
	}
	info, err := decode.Probe(data)
	if err != nil {
		return content{}, fmt.Errorf("%s: %w", in.path, err)
	}
	if min(info.Width, info.Height) <= p.resize {
		return content{in.name, data}, nil
	}
	small, err := shrink(data, info, p.resize, p.quality)
	if err != nil {
		return content{}, fmt.Errorf("%s: %w", in.path, err)
	}
	return content{smallName(in.name), small}, nil
}

// smallName is the name of an image after it was shrunk.
func smallName(name string) string { return strings.TrimSuffix(name, path.Ext(name)) + ".jpg" }

// shrink makes the shorter side `side` pixels long, as Pillow does, and returns a JPEG file.
func shrink(data []byte, info decode.Info, side, quality int) ([]byte, error) {
	height, width := info.Height, info.Width
	if info.Orientation >= 5 { // the pixels lie on their side
		height, width = width, height
	}
	if width < height {
		height, width = max(side*height/width, side), side
	} else {
		height, width = side, max(side*width/height, side)
	}
	pool, err := decode.NewPool(decode.Options{Workers: 1, Transform: decode.Resize{Height: height, Width: width}})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	pixels, results := make([]byte, height*width*3), make([]decode.Result, 1)
	if err := pool.Decode([]decode.Image{{Data: data}}, pixels, results); err != nil {
		return nil, err
	}
	if results[0].Err != nil {
		return nil, results[0].Err
	}
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		copy(img.Pix[4*i:], pixels[3*i:3*i+3])
		img.Pix[4*i+3] = 255
	}
	var out bytes.Buffer
	err = jpeg.Encode(&out, img, &jpeg.Options{Quality: quality})
	return out.Bytes(), err
}
