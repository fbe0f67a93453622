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
	{"a .pth as safetensors", "model.pth: not a whole safetensors file: torch.save wrote it…checkpoint.LoadModel and pth.OpenWeights", func(folder string) error {
		_, err := safetensors.Open(pthFile(folder))
		return err
	}},
	{"a .pth as .pt2", "model.pth:…it holds weights and no program…use checkpoint.LoadModel", func(folder string) error {
		return step(func(x *cgotorch.Exec) { cgotorch.Must(pt2.Load(x, pthFile(folder), pt2.Options{})) })(folder)
	}},
	{"a .pth as AOTInductor's package", "model.pth:…a file of torch.save…checkpoint.LoadModel", func(folder string) error {
		return step(func(x *cgotorch.Exec) { cgotorch.Must(aoti.Load(x, pthFile(folder), aoti.Options{})) })(folder)
	}},
	{"weights of a longer file", "model.safetensors:…the file ends after 92 of them…copy it again", func(folder string) error {
		path := tensorsFile(folder)
		cgotorch.Check(os.Truncate(path, 100))
		return loadModel(path, 2)
	}},
	{"weights of a web page", "resnet18.pth:…a web page…download the file itself", func(folder string) error {
		return loadModel(textFile(folder, "resnet18.pth", "<!DOCTYPE html><html>404</html>"), 2)
	}},
	{"weights that Git LFS has", "model.safetensors:…a pointer of Git LFS…run git lfs pull", func(folder string) error {
		return loadModel(textFile(folder, "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n"), 2)
	}},
	{"weights of a wider layer", "model.safetensors:…2 of another shape: weight (F32[2 2], the model has float32[5 2])…LoadOptions.Skip", func(folder string) error {
		return loadModel(tensorsFile(folder), 5)
	}},
	{"weights alone as a checkpoint", "model.safetensors: it holds tensors alone…use LoadModel", func(folder string) error {
		path := tensorsFile(folder)
		return step(func(x *cgotorch.Exec) {
			o, _ := oneWeight(x)
			defer o.Close()
			cgotorch.Check(checkpoint.Resume(x, path, &checkpoint.Checkpoint{Model: linear(x, 2), Optimizer: o}))
		})(folder)
	}},
	{"a checkpoint of SGD for Adam", `run.safetensors:…the state is one of "sgd"…restore it to an optimizer of that rule`, func(folder string) error {
		path := filepath.Join(folder, "run.safetensors")
		return step(func(x *cgotorch.Exec) {
			m := linear(x, 2)
			sgd := cgotorch.Must(optim.NewSGD(optim.SGDOptions{Momentum: 0.9}, optim.Group{Params: nn.Parameters(m)}))
			defer sgd.Close()
			adam := cgotorch.Must(optim.NewAdam(optim.AdamOptions{}, optim.Group{Params: nn.Parameters(m)}))
			defer adam.Close()
			cgotorch.Check(checkpoint.Save(x, path, checkpoint.Checkpoint{Model: m, Optimizer: sgd}))
			cgotorch.Check(checkpoint.Resume(x, path, &checkpoint.Checkpoint{Model: m, Optimizer: adam}))
		})(folder)
	}},
	{"a checkpoint into a folder that is not there", "none/run.safetensors: there is no folder none…make it first", func(folder string) error {
		return step(func(x *cgotorch.Exec) {
			cgotorch.Check(checkpoint.Save(x, filepath.Join(folder, "none", "run.safetensors"), checkpoint.Checkpoint{Model: linear(x, 2)}))
		})(folder)
	}},

	// Archives and images.
	{"a photograph as an archive", "cat.jpg: neither gzip nor tar…directories can be read", func(folder string) error {
		_, err := imageloader.Open(textFile(folder, "cat.jpg", string(jpegBytes())), imageloader.Options{})
		return err
	}},
	{"an archive that is still downloaded", "photos.tgz: cut short…copy or download it again", func(folder string) error {
		path := archive(folder, "train/cat/1.jpg", "train/dog/2.jpg")
		cgotorch.Check(os.Truncate(path, 300))
		return readImages(path, imageloader.Options{})
	}},
	{"an archive with a text as an image", "photos.tgz: member 2 (train/cat/broken.jpg): not an image…remove it", func(folder string) error {
		return readImages(archive(folder, "train/cat/1.jpg", "train/cat/broken.jpg"), imageloader.Options{})
	}},
	{"images in no folder", "photos.tgz: member 1 (1.jpg): no class…names must be CLASS/FILE", func(folder string) error { return readImages(archive(folder, "1.jpg", "2.jpg"), imageloader.Options{}) }},
	{"a class that is misspelled", `photos.tgz: Options.Labels.Only has "cats"…there are cat, dog`, func(folder string) error {
		return readImages(archive(folder, "cat/1.jpg", "dog/2.jpg"), imageloader.Options{Labels: imageloader.Labels{Only: []string{"cats"}}})
	}},
	{"a crop larger than the images", "photos.tgz: member 1 (cat/1.jpg): 8x8 is smaller than the crop…remove it", func(folder string) error {
		return readImages(archive(folder, "cat/1.jpg"), imageloader.Options{Crop: imageloader.Crop{Transform: decode.RandomCrop{Height: 64, Width: 64}}})
	}},
	{"the place of another archive", "photos.tgz: cannot continue from this state…take the archive and the options of the checkpoint", func(folder string) error {
		l := cgotorch.Must(imageloader.Open(archive(folder, "cat/1.jpg", "cat/2.jpg"), imageloader.Options{}))
		defer l.Close()
		return l.Restore(imageloader.State{Epoch: 1, Samples: 500})
	}},
	{"means of 0 to 255", "Options.Mean is [123 116 103]…divide numbers for pixels of 0 to 255 by 255", func(folder string) error {
		return prefetch(folder, prefetcher.Options{Mean: []float64{123, 116, 103}, Std: []float64{58, 57, 57}})
	}},
	{"MixUp without classes", "Options.Classes is 0…need the number of classes", func(folder string) error {
		return prefetch(folder, prefetcher.Options{Augmentations: prefetcher.Augmentations{MixUp: prefetcher.MixUp{Alpha: 0.2}}})
	}},
}

// loadModel loads a file into a layer of two inputs.
func loadModel(path string, outputs int) error {
	return step(func(x *cgotorch.Exec) {
		cgotorch.Check(checkpoint.LoadModel(x, path, linear(x, outputs), nn.LoadOptions{}))
	})("")
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

// prefetch makes a prefetcher with wrong options.
func prefetch(folder string, o prefetcher.Options) error {
	l := cgotorch.Must(imageloader.Open(archive(folder, "cat/1.jpg"), imageloader.Options{}))
	defer l.Close()
	p, err := prefetcher.New(l, cgotorch.CPU, o)
	if err == nil {
		err = p.Close()
	}
	return err
}
