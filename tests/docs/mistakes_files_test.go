package docs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/aoti"
	"github.com/streamtorch/streamtorch/cgotorch/checkpoint"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/prefetcher"
)

var fileMistakes = []mistake{
	// Files of weights.
	{
		name: "a .pth as safetensors",
		want: "model.pth: not a whole safetensors file: torch.save wrote it…checkpoint.LoadModel and pth.OpenWeights",
		outside: func(folder string) error {
			_, err := safetensors.Open(pthFile(folder))
			return err
		},
	},
	{
		name: "a .pth as .pt2",
		want: "model.pth:…it holds weights and no program…use checkpoint.LoadModel",
		outside: func(folder string) error {
			return inDo(func(x *cgotorch.Exec) error { _, err := pt2.Load(x, pthFile(folder), pt2.Options{}); return err })
		},
	},
	{
		name: "a .pth as AOTInductor's package",
		want: "model.pth:…a file of torch.save…checkpoint.LoadModel",
		outside: func(folder string) error {
			return inDo(func(x *cgotorch.Exec) error { _, err := aoti.Load(x, pthFile(folder), aoti.Options{}); return err })
		},
	},
	{
		name: "weights of a longer file",
		want: "model.safetensors:…the file ends after 92 of them…copy it again",
		outside: func(folder string) error {
			path := tensorsFile(folder)
			if err := os.Truncate(path, 100); err != nil {
				return err
			}
			return inDo(func(x *cgotorch.Exec) error { return checkpoint.LoadModel(x, path, linear(x, 2, 2), nn.LoadOptions{}) })
		},
	},
	{
		name: "weights of a web page",
		want: "resnet18.pth:…a web page…download the file itself",
		outside: func(folder string) error {
			path := textFile(folder, "resnet18.pth", "<!DOCTYPE html><html>404</html>")
			return inDo(func(x *cgotorch.Exec) error { return checkpoint.LoadModel(x, path, linear(x, 2, 2), nn.LoadOptions{}) })
		},
	},
	{
		name: "weights that Git LFS has",
		want: "model.safetensors:…a pointer of Git LFS…run git lfs pull",
		outside: func(folder string) error {
			path := textFile(folder, "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n")
			return inDo(func(x *cgotorch.Exec) error { return checkpoint.LoadModel(x, path, linear(x, 2, 2), nn.LoadOptions{}) })
		},
	},
	{
		name: "weights of a wider layer",
		want: "model.safetensors:…2 of another shape: weight (F32[2 2], the model has float32[5 2])…LoadOptions.Skip",
		outside: func(folder string) error {
			path := tensorsFile(folder)
			return inDo(func(x *cgotorch.Exec) error { return checkpoint.LoadModel(x, path, linear(x, 2, 5), nn.LoadOptions{}) })
		},
	},
	{
		name: "weights alone as a checkpoint",
		want: "model.safetensors: it holds tensors alone…use LoadModel",
		outside: func(folder string) error {
			path := tensorsFile(folder)
			return inDo(func(x *cgotorch.Exec) error {
				o, _, err := oneWeight(x)
				if err != nil {
					return err
				}
				defer o.Close()
				_, err = checkpoint.Load(x, path, linear(x, 2, 2), o)
				return err
			})
		},
	},
	{
		name: "a checkpoint of SGD for Adam",
		want: `run.safetensors:…the state is one of "sgd"…restore it to an optimizer of that rule`,
		outside: func(folder string) error {
			path := filepath.Join(folder, "run.safetensors")
			return inDo(func(x *cgotorch.Exec) error {
				m := linear(x, 2, 2)
				sgd, err := optim.NewSGD(optim.SGDOptions{Momentum: 0.9}, optim.Group{Params: nn.Parameters(m)})
				if err != nil {
					return err
				}
				defer sgd.Close()
				adam, err := optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: nn.Parameters(m)})
				if err != nil {
					return err
				}
				defer adam.Close()
				if err := checkpoint.Save(x, path, checkpoint.Checkpoint{Model: m, Optimizer: sgd}); err != nil {
					return err
				}
				_, err = checkpoint.Load(x, path, m, adam)
				return err
			})
		},
	},
	{
		name: "a checkpoint into a folder that is not there",
		want: "none/run.safetensors: there is no folder none…make it first",
		outside: func(folder string) error {
			return inDo(func(x *cgotorch.Exec) error {
				return checkpoint.Save(x, filepath.Join(folder, "none", "run.safetensors"), checkpoint.Checkpoint{Model: linear(x, 2, 2)})
			})
		},
	},

	// Archives and images.
	{
		name: "a photograph as an archive",
		want: "cat.jpg: neither gzip nor tar…directories can be read",
		outside: func(folder string) error {
			_, err := imageloader.Open(textFile(folder, "cat.jpg", string(jpegBytes())), imageloader.Options{})
			return err
		},
	},
	{
		name: "an archive that is still downloaded",
		want: "photos.tgz: cut short…copy or download it again",
		outside: func(folder string) error {
			path := archive(folder, "train/cat/1.jpg", "train/dog/2.jpg")
			if err := os.Truncate(path, 300); err != nil {
				return err
			}
			return readImages(path, imageloader.Options{})
		},
	},
	{
		name: "an archive with a text as an image",
		want: "photos.tgz: member 2 (train/cat/broken.jpg): not an image…remove it",
		outside: func(folder string) error {
			return readImages(archive(folder, "train/cat/1.jpg", "train/cat/broken.jpg"), imageloader.Options{})
		},
	},
	{
		name:    "images in no folder",
		want:    "photos.tgz: member 1 (1.jpg): no class…names must be CLASS/FILE",
		outside: func(folder string) error { return readImages(archive(folder, "1.jpg", "2.jpg"), imageloader.Options{}) },
	},
	{
		name: "a class that is misspelled",
		want: `photos.tgz: Options.OnlyClasses has "cats"…there are cat, dog`,
		outside: func(folder string) error {
			return readImages(archive(folder, "cat/1.jpg", "dog/2.jpg"), imageloader.Options{OnlyClasses: []string{"cats"}})
		},
	},
	{
		name: "a crop larger than the images",
		want: "photos.tgz: member 1 (cat/1.jpg): 8x8 is smaller than the crop…remove it",
		outside: func(folder string) error {
			return readImages(archive(folder, "cat/1.jpg"), imageloader.Options{Transform: decode.RandomCrop{Height: 64, Width: 64}})
		},
	},
	{
		name: "the place of another archive",
		want: "photos.tgz: cannot continue from this state…take the archive and the options of the checkpoint",
		outside: func(folder string) error {
			l, err := imageloader.Open(archive(folder, "cat/1.jpg", "cat/2.jpg"), imageloader.Options{})
			if err != nil {
				return err
			}
			defer l.Close()
			return l.Restore(imageloader.State{Epoch: 1, Samples: 500})
		},
	},
	{
		name: "means of 0 to 255",
		want: "Options.Mean is [123 116 103]…divide numbers for pixels of 0 to 255 by 255",
		outside: func(folder string) error {
			return prefetch(folder, prefetcher.Options{Mean: []float64{123, 116, 103}, Std: []float64{58, 57, 57}})
		},
	},
	{
		name: "MixUp without classes",
		want: "Options.Classes is 0…need the number of classes",
		outside: func(folder string) error {
			return prefetch(folder, prefetcher.Options{MixUp: prefetcher.MixUp{Alpha: 0.2}})
		},
	},
}

func textFile(folder, name, text string) string {
	path := filepath.Join(folder, name)
	cgotorch.Check(os.WriteFile(path, []byte(text), 0o600))
	return path
}

var linearTensors = []safetensors.Tensor{
	{Name: "weight", DType: "F32", Shape: []int64{2, 2}, Data: make([]byte, 16)}, {Name: "bias", DType: "F32", Shape: []int64{2}, Data: make([]byte, 8)},
}

func tensorsFile(folder string) string {
	path := filepath.Join(folder, "model.safetensors")
	cgotorch.Check(safetensors.WriteFile(path, linearTensors, nil))
	return path
}

func pthFile(folder string) string {
	var file bytes.Buffer
	cgotorch.Check(pth.Write(&file, linearTensors))
	return textFile(folder, "model.pth", file.String())
}

func jpegBytes() []byte {
	var out bytes.Buffer
	cgotorch.Check(jpeg.Encode(&out, image.NewRGBA(image.Rect(0, 0, 8, 8)), nil))
	return out.Bytes()
}

// archive writes a .tgz of images. One whose name has "broken" is a text.
func archive(folder string, names ...string) string {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, name := range names {
		body := jpegBytes()
		if strings.Contains(name, "broken") {
			body = []byte("not found")
		}
		cgotorch.Check(w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}))
		cgotorch.Must(w.Write(body))
	}
	w.Close()
	z.Close()
	return textFile(folder, "photos.tgz", out.String())
}

func readImages(path string, o imageloader.Options) error {
	l, err := imageloader.Open(path, o)
	if err != nil {
		return err
	}
	defer l.Close()
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			return err
		}
		b.Release()
	}
	return nil
}

func prefetch(folder string, o prefetcher.Options) error {
	l, err := imageloader.Open(archive(folder, "cat/1.jpg"), imageloader.Options{})
	if err != nil {
		return err
	}
	defer l.Close()
	p, err := prefetcher.New(l, cgotorch.CPU, o)
	if err != nil {
		return err
	}
	defer p.Close()
	for _, err := range p.Epoch(context.Background()) {
		if err != nil {
			return err
		}
	}
	return nil
}
