package prefetcher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// everything turns on every augmentation that changes single images.
var everything = Options{Augmentations: Augmentations{TrivialAugmentWide: true, ColorJitter: ColorJitter{0.4, 0.4, 0.4, 0.1}, RandomErasing: RandomErasing{Probability: 0.5}}}

// pictures is a source of images of 16 x 20 pixels.
type pictures struct {
	sizes []int // of the batches
	keys  []uint64
	flips bool
	spoil func(*imageloader.HostBatch)
}

const picturesHeight, picturesWidth = 16, 20

func (p pictures) Shape() (batch, height, width, channels int) {
	return slices.Max(p.sizes), picturesHeight, picturesWidth, 3
}

func (p pictures) Pin(imageloader.Pinner) error { return nil } // so all parts of the batches go through the staging

// picture returns the pixels of the image with key k.
func picture(k uint64) []byte {
	pixels := make([]byte, picturesHeight*picturesWidth*3)
	r := rand.New(rand.NewPCG(k, 1))
	for i := range pixels {
		pixels[i] = byte(i*int(k%7) + r.IntN(30))
	}
	return pixels
}

func (p pictures) Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error] {
	return func(yield func(*imageloader.HostBatch, error) bool) {
		at := 0
		for i, n := range p.sizes {
			b := &imageloader.HostBatch{N: n, Height: picturesHeight, Width: picturesWidth, Channels: 3, Index: i, Keys: p.keys[at : at+n]}
			for _, k := range b.Keys {
				b.Images = append(b.Images, picture(k)...)
				b.Labels = append(b.Labels, int64(k%5))
				b.Flip = append(b.Flip, p.flips && k%2 == 1)
			}
			if p.spoil != nil {
				p.spoil(b)
			}
			if at += n; ctx.Err() != nil || !yield(b, nil) {
				return
			}
		}
	}
}

// batches runs an epoch. It returns the images and the labels. Each image is float32 in the order
// c, h, w.
func batches(t *testing.T, source Source, d cgotorch.Device, o Options) (images [][]float32, labels [][]float32) {
	t.Helper()
	p := start(t, source, d, o)
	defer p.Close()
	eachBatch(t, p, cgotorch.DefaultStream(d), func(x *cgotorch.Exec, b *Batch, from, classes *cgotorch.Tensor) {
		values := cgotorch.ToSlice[float32](x, x.To(from, cgotorch.Float32))
		soft := cgotorch.ToSlice[float32](x, x.To(classes, cgotorch.Float32))
		for i := range b.N {
			images = append(images, values[i*len(values)/b.N:][:len(values)/b.N])
			labels = append(labels, soft[i*len(soft)/b.N:][:len(soft)/b.N])
		}
	})
	return images, labels
}

func someKeys(n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(i+1) * 0x9e3779b97f4a7c15
	}
	return keys
}

// The image of a key is the same in every batch and on every device.
func TestAugmentations_AnyBatch(t *testing.T) {
	keys := someKeys(24)
	for name, o := range map[string]Options{
		"all":     everything,
		"jitter":  {Augmentations: Augmentations{ColorJitter: everything.ColorJitter}},
		"trivial": {Augmentations: Augmentations{TrivialAugmentWide: true}},
		"auto":    {Augmentations: Augmentations{VerticalFlip: 0.5, AutoAugment: "cifar10", Grayscale: 0.1}},
		"rand":    {Augmentations: Augmentations{RandAugment: RandAugment{Operations: 3, Magnitude: 20}, Fill: []uint8{9, 99, 199}, Bilinear: true, ColorJitter: everything.ColorJitter}},
		"augmix":  {Augmentations: Augmentations{AugMix: AugMix{Severity: 8}}},
		"mixed":   {Augmentations: Augmentations{Pad: images.PadOptions{Left: 3, Bottom: 2, Mode: "reflect"}, VerticalFlip: 0.5, AugMix: AugMix{Severity: 5, Width: 2, Depth: 4}, Grayscale: 0.5, GaussianBlur: GaussianBlur{Kernel: 5}}},
		"blur":    {Augmentations: Augmentations{GaussianBlur: GaussianBlur{Kernel: 7, Probability: 0.7}}},
		"flips":   {Augmentations: Augmentations{VerticalFlip: 0.5, ColorJitter: ColorJitter{Hue: 0.1}, Grayscale: 0.4}},
		"erasing": {Augmentations: Augmentations{RandomErasing: RandomErasing{Probability: 0.7, Value: []float64{0.5, -1, 2}}}},
		"half":    {Augmentations: Augmentations{TrivialAugmentWide: true, ColorJitter: everything.ColorJitter, RandomErasing: everything.RandomErasing}, DType: cgotorch.BFloat16, Contiguous: true},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.CheckLeaks(t)
			want, _ := batches(t, pictures{sizes: []int{8, 8, 8}, keys: keys, flips: true}, cgotorch.CPU, o)
			plain, _ := batches(t, pictures{sizes: []int{24}, keys: keys, flips: true}, cgotorch.CPU, Options{DType: o.DType, Contiguous: o.Contiguous})
			changed := 0
			for i := range want {
				if !slices.Equal(want[i], plain[i]) {
					changed++
				}
			}
			if changed < 12 {
				t.Errorf("%d of 24 images were changed", changed)
			}
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				for _, sizes := range [][]int{{24}, {8, 8, 8}, {1, 9, 2, 9, 3}} {
					got, _ := batches(t, pictures{sizes: sizes, keys: keys, flips: true}, d, o)
					for i := range want {
						if !slices.Equal(got[i], want[i]) {
							t.Fatalf("batches of %v: image %d is another one", sizes, i)
						}
					}
				}
			})
		})
	}
}

// Passes give the same images as the steps of each image one after another, each in a call of its
// own. AugMix blends the copies, and GaussianBlur comes last.
func TestAugmentations_PassesEqualSteps(t *testing.T) {
	keys := someKeys(12)
	for _, o := range []Options{
		{Augmentations: Augmentations{VerticalFlip: 0.5, TrivialAugmentWide: true, Grayscale: 0.5}},
		{Augmentations: Augmentations{VerticalFlip: 0.5, AutoAugment: "svhn", ColorJitter: everything.ColorJitter}},
		{Augmentations: Augmentations{VerticalFlip: 0.5, RandAugment: RandAugment{Operations: 16, Magnitude: 12}, ColorJitter: everything.ColorJitter, Grayscale: 0.5}},
		{Augmentations: Augmentations{VerticalFlip: 0.5, AugMix: AugMix{Severity: 10}, ColorJitter: everything.ColorJitter, GaussianBlur: GaussianBlur{Kernel: 5}}},
		{Augmentations: Augmentations{AugMix: AugMix{Severity: 7, Width: 8, Depth: 8}, Grayscale: 0.5, GaussianBlur: GaussianBlur{Kernel: 3, Probability: 0.5}}},
	} {
		o.Mean, o.Std = []float64{0}, []float64{1.0 / 255} // an image keeps its levels
		got, _ := batches(t, pictures{sizes: []int{12}, keys: keys, flips: true}, cgotorch.CPU, o)
		o := must.Get(o.complete(shape{12, picturesHeight, picturesWidth, 3}))(t)
		for i, k := range keys {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				want := cgotorch.ToSlice[float32](x, x.To(x.Permute(alone(x, o, key(k)), 0, 3, 1, 2), cgotorch.Float32))
				for j, v := range want {
					if math.Abs(float64(got[i][j]-v)) > 0.01 {
						t.Fatalf("%+v: image %d, element %d: got %v, want %v", o, i, j, got[i][j], v)
					}
				}
			})
		}
	}
}

// alone returns the picture with key k after the augmentations of o, uint8 [1, H, W, C]. Pictures
// with odd keys are flipped.
func alone(x *cgotorch.Exec, o Options, k key) *cgotorch.Tensor {
	each := func(img *cgotorch.Tensor, steps []images.Step) *cgotorch.Tensor {
		for _, s := range steps {
			after := x.EmptyLike(img)
			images.Augment(x, img, nil, images.Steps(x, []images.Step{s}), after)
			img = after
		}
		return img
	}
	img := cgotorch.FromSlice(x, picture(uint64(k)), 1, picturesHeight, picturesWidth, 3)
	if k%2 == 1 {
		img = x.Flip(img, 2)
	}
	img = each(img, o.before(k, nil, picturesHeight, picturesWidth))
	if o.AugMix.on() {
		var copies []*cgotorch.Tensor
		for i := range o.AugMix.Width {
			copies = append(copies, each(img, o.chain(k, i, nil, picturesHeight, picturesWidth)))
		}
		weights, blended := make([]float32, 1+o.AugMix.Width), x.EmptyLike(img)
		o.AugMix.weights(k, weights)
		images.Blend(x, img, nil, x.Cat(copies, 0), cgotorch.FromSlice(x, weights, 1, int64(len(weights))), blended)
		img = blended
	}
	img = each(img, o.after(k, nil))
	if o.GaussianBlur.on() {
		sigma, blurred := o.GaussianBlur.sigma(k), x.EmptyLike(img)
		images.GaussianBlur(x, img, cgotorch.FromSlice(x, []float32{sigma, sigma}, 1, 2), blurred, o.GaussianBlur.Kernel, o.GaussianBlur.Kernel)
		img = blurred
	}
	return img
}

// Pad makes batches larger, and comes after the loader's flips and before the other augmentations.
func TestAugmentations_Pad(t *testing.T) {
	const left, top, right, bottom = 2, 1, 3, 4
	keys := someKeys(5)
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		o := Options{Mean: []float64{0}, Std: []float64{1.0 / 255}, Augmentations: Augmentations{VerticalFlip: 1}}
		o.Pad = images.PadOptions{Left: left, Top: top, Right: right, Bottom: bottom, Fill: []uint8{7, 8, 9}}
		got, _ := batches(t, pictures{sizes: []int{3, 2}, keys: keys, flips: true}, d, o)
		const height, width = picturesHeight + top + bottom, picturesWidth + left + right
		for i, k := range keys {
			if len(got[i]) != 3*height*width {
				t.Fatalf("%d elements, want %d", len(got[i]), 3*height*width)
			}
			for j, v := range got[i] {
				c, y, x := j/(height*width), height-1-j/width%height-top, j%width-left
				want := o.Pad.Fill[c]
				if y >= 0 && y < picturesHeight && x >= 0 && x < picturesWidth {
					if k%2 == 1 {
						x = picturesWidth - 1 - x
					}
					want = picture(k)[(y*picturesWidth+x)*3+c]
				}
				if math.Abs(float64(v)-float64(want)) > 0.01 {
					t.Fatalf("image %d, element %d: got %v, want %v", i, j, v, want)
				}
			}
		}
	})
}

// If no augmentation is on, nothing is drawn and a batch needs no keys.
func TestAugmentations_Off(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p := start(t, pictures{sizes: []int{3}, keys: someKeys(3)}, d, Options{})
		if r := p.recipe; r.o.draws() || r.steps != nil || r.augmented != nil || r.erased != nil || len(r.free) != 0 {
			t.Errorf("a prefetcher without augmentations has memory for them: %+v", r)
		}
		batches(t, pictures{sizes: []int{3}, keys: someKeys(3), spoil: func(b *imageloader.HostBatch) { b.Keys = nil }}, d, Options{})
	})
}

// A batch that is made without MixUp and CutMix is made again with them. The second batch then
// has the mixes of the images and labels of the first.
func TestAugmentations_Mixes(t *testing.T) {
	const classes = 5
	keys := someKeys(40)
	sizes := []int{4, 7, 1, 4, 4, 4, 4, 4, 4, 4}
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		source := pictures{sizes: sizes, keys: keys, flips: true}
		plain, hard := batches(t, source, d, everything)
		o := everything
		o.MixUp, o.CutMix, o.Classes = MixUp{0.8}, CutMix{1}, classes
		mixed, soft := batches(t, source, d, o)
		at, kinds := 0, map[images.MixKind]int{}
		for _, n := range sizes {
			m := drawMix(key(keys[at]), o.MixUp, o.CutMix, picturesHeight, picturesWidth)
			kinds[m.images.Kind]++
			for i := range n {
				own, before := plain[at+i], plain[at+(i+n-1)%n]
				for j := range own {
					y, x := j/picturesWidth%picturesHeight, j%picturesWidth
					want := own[j]
					switch {
					case m.images.Kind == images.MixUp:
						want = float32(before[j]*float32(1-m.images.Share)) + float32(own[j]*float32(m.images.Share))
					case y >= m.images.Top && y < m.images.Bottom && x >= m.images.Left && x < m.images.Right:
						want = before[j]
					}
					if mixed[at+i][j] != want {
						t.Fatalf("image %d, element %d: got %v, want %v of %+v", at+i, j, mixed[at+i][j], want, m)
					}
				}
				want := make([]float32, classes)
				want[int(hard[at+(i+n-1)%n][0])] += float32(1 - m.share)
				want[int(hard[at+i][0])] += float32(m.share)
				if !slices.Equal(soft[at+i], want) {
					t.Errorf("labels of image %d: got %v, want %v", at+i, soft[at+i], want)
				}
			}
			at += n
		}
		if kinds[images.MixUp] == 0 || kinds[images.CutMix] == 0 {
			t.Errorf("of both mixes there were %v", kinds)
		}
	})
}

// An image does not depend on the number of workers, or on the place where a run is resumed.
func TestAugmentations_WorkersAndResume(t *testing.T) {
	torchtest.CheckLeaks(t)
	path := archive(t, 22, -1)
	var o Options
	// run returns a line for each batch: sums of its images and of its labels. If `from` is not -1,
	// the first epoch stops at batch `from` and the run resumes there.
	run := func(workers, from int) (sums []string) {
		l := imageloader.Options{BatchSize: 4, Train: true, Seed: 5, Workers: workers, Crop: imageloader.Crop{Transform: decode.RandomResizedCrop{Height: side, Width: side}}}
		loader := must.Get(imageloader.Open(path, l))(t)
		defer loader.Close()
		p := start(t, loader, cgotorch.CPU, o)
		defer p.Close()
		var state imageloader.State
		for epoch := range 2 {
			for batch, err := range p.Epoch(context.Background()) {
				must.Do(t, err)
				if epoch == 0 && batch.Index == from {
					state = batch.State
					break
				}
				torchtest.DoOn(t, cgotorch.DefaultStream(cgotorch.CPU), func(x *cgotorch.Exec) {
					images, labels := batch.Use(x)
					sums = append(sums, fmt.Sprint(batch, x.Item(x.Sum(x.Mul(images, images))), x.Item(x.Sum(x.Mul(labels, labels)))))
				})
			}
			if epoch == 0 && from >= 0 {
				must.Do(t, loader.Restore(state))
			}
		}
		return sums
	}
	for _, o = range []Options{
		{Augmentations: Augmentations{TrivialAugmentWide: true, ColorJitter: everything.ColorJitter, RandomErasing: everything.RandomErasing, MixUp: MixUp{0.2}, CutMix: CutMix{1}}, Classes: 3},
		{Augmentations: Augmentations{AutoAugment: "imagenet", GaussianBlur: GaussianBlur{Kernel: 3}}},
		{Augmentations: Augmentations{RandAugment: RandAugment{Operations: 2, Magnitude: 9}, VerticalFlip: 0.5}},
		{Augmentations: Augmentations{AugMix: AugMix{Severity: 3}, Pad: images.PadOptions{Left: 1, Mode: "edge"}}},
	} {
		whole := run(1, -1)
		if got := run(3, -1); !slices.Equal(got, whole) {
			t.Errorf("with 3 workers:\n%v\nwith 1:\n%v", got, whole)
		}
		// The resumed run has batches 0 and 1, and then the batches after batch 2 of the same epoch.
		resumed := run(2, 2)
		if want := slices.Concat(whole[:2], whole[3:6]); !slices.Equal(resumed, want) {
			t.Errorf("resumed:\n%v\nwant\n%v", resumed, want)
		}
	}
}

// The random choices for a batch are copied to the device before their memory is written again.
// The host also waits for that copy before it frees the memory.
func TestAugmentations_HaveNoRace(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		loader := open(t, archive(t, 24, -1), imageloader.Options{BatchSize: 2, Buffers: 3, Crop: imageloader.Crop{HorizontalFlip: 1}})
		o := everything
		o.Depth, o.MixUp, o.Classes = 1, MixUp{1}, 3
		blended := Options{Depth: 1, Augmentations: Augmentations{Pad: images.PadOptions{Left: 1}, VerticalFlip: 0.5, AugMix: AugMix{Severity: 3}, GaussianBlur: GaussianBlur{Kernel: 3}}}
		for _, o := range []Options{o, blended} {
			p := start(t, loader, d, o)
			eachBatch(t, p, torchtest.NewStream(t, d), func(x *cgotorch.Exec, _ *Batch, images, labels *cgotorch.Tensor) {
				x.Sum(images)
				x.Sum(labels)
			})
			p.Close()
		}
	})
}

// The memory of the random choices comes back, however an epoch ends. The check for leaks counts
// this memory.
func TestAugmentations_MemoryComesBack(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*imageloader.HostBatch)
		leave bool // leave the loop in the first body
		stop  bool // cancel while a batch waits for a slot
	}{
		"at its end":                         {},
		"left early":                         {leave: true},
		"stopped while a batch has no slot":  {stop: true},
		"a copy that fails behind another's": {spoil: func(b *imageloader.HostBatch) { b.Labels = b.Labels[:1] }},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				source := newCounted(t, 20, func(b *imageloader.HostBatch) {
					b.Keys = []uint64{1, 2}
					if test.spoil != nil {
						test.spoil(b)
					}
				})
				o := everything
				o.Depth = 1
				p := start(t, source, d, o)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				for range 3 { // epochs
					for batch, err := range p.Epoch(ctx) {
						if err != nil || batch.Index > 0 {
							continue
						}
						if test.stop {
							for source.made.Load() < 3 {
								runtime.Gosched()
							}
							time.Sleep(10 * time.Millisecond) // by now the batch has memory for its drawn parameters, or waits for it
							cancel()
						}
						if test.leave {
							break
						}
					}
					if n := len(p.recipe.free); n != cap(p.recipe.free) {
						t.Fatalf("%d of %d came back", n, cap(p.recipe.free))
					}
				}
			})
		})
	}
}

func TestAugmentations_BadBatches(t *testing.T) {
	mixes := Options{Augmentations: Augmentations{MixUp: MixUp{1}}, Classes: 5}
	for _, c := range []struct {
		want  string
		o     Options
		spoil func(*imageloader.HostBatch)
	}{
		{"0 keys for 3 images", everything, func(b *imageloader.HostBatch) { b.Keys = nil }},
		{"2 keys for 3 images", mixes, func(b *imageloader.HostBatch) { b.Keys = b.Keys[:2] }},
		{"image 1 of batch 0 of epoch 0 has label 5; Options.Classes is 5", mixes, func(b *imageloader.HostBatch) { b.Labels[1] = 5 }},
		{"image 2 of batch 0 of epoch 0 has label -1", mixes, func(b *imageloader.HostBatch) { b.Labels[2] = -1 }},
	} {
		torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
			p := start(t, pictures{sizes: []int{3}, keys: someKeys(3), spoil: c.spoil}, d, c.o)
			var last error
			for _, err := range p.Epoch(context.Background()) {
				last = err
			}
			if last == nil || !strings.Contains(last.Error(), c.want) {
				t.Errorf("got %v, want an error that says %q", last, c.want)
			}
		})
	}
}

func TestOptions_InvalidAugmentations(t *testing.T) {
	torchtest.CheckLeaks(t)
	source := pictures{sizes: []int{1}, keys: someKeys(1)}
	for want, o := range map[string]Options{
		"ColorJitter":         {Augmentations: Augmentations{ColorJitter: ColorJitter{Hue: 0.6}}},
		"Options.ColorJitter": {Augmentations: Augmentations{ColorJitter: ColorJitter{Brightness: -1}}},
		"RandomErasing is":    {Augmentations: Augmentations{RandomErasing: RandomErasing{Probability: 2}}},
		"ratios above 0":      {Augmentations: Augmentations{RandomErasing: RandomErasing{Probability: 1, MinRatio: 2, MaxRatio: 1}}},
		"RandomErasing.Value": {Augmentations: Augmentations{RandomErasing: RandomErasing{Probability: 1, Value: []float64{1, 2}}}},
		"MixUp.Alpha":         {Augmentations: Augmentations{MixUp: MixUp{-1}}, Classes: 2},
		"CutMix.Alpha":        {Augmentations: Augmentations{CutMix: CutMix{-1}}, Classes: 2},
		"number of classes":   {Augmentations: Augmentations{CutMix: CutMix{1}}},
		"VerticalFlip is 1.5": {Augmentations: Augmentations{VerticalFlip: 1.5}},
		"Grayscale -1":        {Augmentations: Augmentations{Grayscale: -1}},
		"exclude each other":  {Augmentations: Augmentations{AutoAugment: "svhn", TrivialAugmentWide: true}},
		"them":                {Augmentations: Augmentations{AugMix: AugMix{Severity: 1}, RandAugment: RandAugment{Operations: 1}}},
		`AutoAugment is "x"`:  {Augmentations: Augmentations{AutoAugment: "x"}},
		"Operations is 17":    {Augmentations: Augmentations{RandAugment: RandAugment{Operations: 17}}},
		"Bins-1, which is 30": {Augmentations: Augmentations{RandAugment: RandAugment{Operations: 1, Magnitude: 31}}},
		"Bins is 1":           {Augmentations: Augmentations{RandAugment: RandAugment{Operations: 1, Bins: 1}}},
		"AugMix.Severity":     {Augmentations: Augmentations{AugMix: AugMix{Severity: 11}}},
		"AugMix.Width":        {Augmentations: Augmentations{AugMix: AugMix{Severity: 1, Width: 9}}},
		"AugMix.Depth":        {Augmentations: Augmentations{AugMix: AugMix{Severity: 1, Depth: -1}}},
		"AugMix.Alpha":        {Augmentations: Augmentations{AugMix: AugMix{Severity: 1, Alpha: -1}}},
		"Fill has 2 levels":   {Augmentations: Augmentations{Fill: []uint8{1, 2}}},
		"Kernel is 4":         {Augmentations: Augmentations{GaussianBlur: GaussianBlur{Kernel: 4}}},
		"Kernel is 65":        {Augmentations: Augmentations{GaussianBlur: GaussianBlur{Kernel: 65}}},
		"height 16":           {Augmentations: Augmentations{GaussianBlur: GaussianBlur{Kernel: 33}}},
		"MinSigma":            {Augmentations: Augmentations{GaussianBlur: GaussianBlur{Kernel: 3, MinSigma: 2, MaxSigma: 1}}},
		"Pad: Left is 20":     {Augmentations: Augmentations{Pad: images.PadOptions{Left: 20, Mode: "reflect"}}},
		"Pad: Top is -1":      {Augmentations: Augmentations{Pad: images.PadOptions{Top: -1}}},
		"Pad: Bottom is 17":   {Augmentations: Augmentations{Pad: images.PadOptions{Bottom: 17, Mode: "symmetric"}}},
		"Pad: Mode is":        {Augmentations: Augmentations{Pad: images.PadOptions{Mode: "mirror"}}},
		"Pad: Fill has 2":     {Augmentations: Augmentations{Pad: images.PadOptions{Fill: []uint8{1, 2}}}},
	} {
		if _, err := New(source, cgotorch.CPU, o); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error about %s", o, err, want)
		}
	}
	if _, err := (Options{Augmentations: Augmentations{Pad: images.PadOptions{Left: 9, Top: 9}, GaussianBlur: GaussianBlur{Kernel: 33}}}).complete(shape{1, 9, 9, 3}); err != nil {
		t.Errorf("a blur of padded images: %v", err)
	}
	if _, err := (Options{Augmentations: Augmentations{TrivialAugmentWide: true}}).complete(shape{channels: 4}); !errors.Is(err, ErrInvalidOptions) || !strings.Contains(err.Error(), "1 or 3 channels") {
		t.Errorf("images of 4 channels: %v", err)
	}
}
