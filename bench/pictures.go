package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// pictures are images on the device, each decoded once, with an order in which to train on them.
// The peer has equal bits.
type pictures struct {
	count   int
	images  *cgotorch.Tensor // float32 [count, size, size, 3], normalized
	labels  *cgotorch.Tensor // int64 [count]
	indices *cgotorch.Tensor // int64 [steps, batch]: the images of each step
	flips   *cgotorch.Tensor // bool [steps, batch, 1, 1, 1]: whether each is mirrored
}

// newPictures decodes the recipe's training images once. It draws the order of the given number of
// steps, and gives all of it to the peer in files.
func newPictures(c *config, r recipe, p *peer, steps int) (*pictures, error) {
	pixels, labels, err := r.decode(c)
	if err != nil {
		return nil, err
	}
	indices, flips := drawOrder(len(labels), steps, r.batch)
	folder, err := os.MkdirTemp("", "bench-pictures-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	request := []any{"batch", r.batch, "size", r.size, "device", c.device.String()}
	for _, file := range []struct {
		name string
		data any
	}{{"pixels", pixels}, {"labels", labels}, {"indices", indices}, {"flips", flips}} {
		var data bytes.Buffer
		path := filepath.Join(folder, file.name)
		if err := errors.Join(binary.Write(&data, binary.NativeEndian, file.data), os.WriteFile(path, data.Bytes(), 0o600)); err != nil {
			return nil, err
		}
		request = append(request, file.name, path)
	}
	var reply struct{ Digest string }
	if err := p.do(&reply, "pictures", request...); err != nil {
		return nil, err
	}
	all := &pictures{count: len(labels)}
	n, size := int64(len(labels)), int64(r.size)
	digest := ""
	err = cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		all.images = x.Keep(x.Empty(cgotorch.Float32, n, size, size, 3))
		table := images.NormalizationTable(x, images.ImageNetMean[:], images.ImageNetStd[:], cgotorch.Float32)
		images.Normalize(x, cgotorch.FromSlice(x, pixels, n, size, size, 3), nil, table, x.Permute(all.images, 0, 3, 1, 2))
		all.labels = x.Keep(cgotorch.FromSlice(x, labels))
		all.indices = x.Keep(cgotorch.FromSlice(x, indices, int64(steps), int64(r.batch)))
		all.flips = x.Keep(cgotorch.FromSlice(x, flips, int64(steps), int64(r.batch), 1, 1, 1))
		digest = fmt.Sprintf("%x", sha256.Sum256(cgotorch.ToBytes(x, all.images)))
		return nil
	})
	if err == nil && digest != reply.Digest {
		err = errors.New("the normalized images differ from the peer's")
	}
	if err != nil {
		all.close()
		return nil, err
	}
	return all, nil
}

// decode returns one epoch of the recipe's training images, uint8 [N, size, size, 3], and their
// labels.
func (r recipe) decode(c *config) (pixels []byte, labels []int64, err error) {
	archive, err := c.find(r.archive)
	if err != nil {
		return nil, nil, err
	}
	loader, err := r.open(c, archive, 1, r.batch)
	if err != nil {
		return nil, nil, err
	}
	defer loader.Close()
	for batch, err := range loader.Epoch(context.Background()) {
		if err != nil {
			return nil, nil, err
		}
		pixels, labels = append(pixels, batch.Images...), append(labels, batch.Labels...)
		batch.Release()
	}
	if classes := int(slices.Max(labels)) + 1; classes > r.classes {
		return nil, nil, fmt.Errorf("%s has %d classes, want at most %d", archive, classes, r.classes)
	}
	return pixels, labels, nil
}

// drawOrder returns the indices and the flips of steps*batch images. Each image occurs once before
// any image occurs again.
func drawOrder(count, steps, batch int) (indices []int64, flips []bool) {
	random := rand.New(rand.NewPCG(1, 1))
	for len(indices) < steps*batch {
		for _, i := range random.Perm(count) {
			indices = append(indices, int64(i))
			flips = append(flips, random.IntN(2) == 1)
		}
	}
	return indices[:steps*batch], flips[:steps*batch]
}

// batch returns the images of a step, float32 [batch, 3, size, size] channels last, and their
// labels. The Do owns both.
func (p *pictures) batch(x *cgotorch.Exec, step int) (images, labels *cgotorch.Tensor) {
	indices := x.Select(p.indices, 0, step)
	images = x.Tidy(func() *cgotorch.Tensor {
		chosen := x.IndexSelect(p.images, 0, indices)
		return x.Where(x.Select(p.flips, 0, step), x.Flip(chosen, 2), chosen)
	})
	return x.Permute(images, 0, 3, 1, 2), x.IndexSelect(p.labels, 0, indices)
}

func (p *pictures) close() {
	for _, t := range []*cgotorch.Tensor{p.images, p.labels, p.indices, p.flips} {
		t.Close()
	}
}
