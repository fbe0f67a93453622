package imageloader

import (
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/decode"
	"github.com/streamtorch/streamtorch/internal/must"
)

func TestOpen_InvalidOptions(t *testing.T) {
	checkLeaks(t)
	path := write(t, "a.tar", tarOf(numbered(3)))
	for _, test := range []struct {
		options Options
		want    string
	}{
		{Options{BatchSize: -1}, "Options.BatchSize is -1; it must not be below 0"},
		{Options{Reading: Reading{ShuffleBuffer: -1}}, "Options.Reading.ShuffleBuffer is -1"},
		{Options{Workers: -2}, "Options.Workers is -2"},
		{Options{Buffers: -1}, "Options.Buffers is -1"},
		{Options{Reading: Reading{MaxPixels: -1}}, "Options.Reading.MaxPixels is -1"},
		{Options{Reading: Reading{MaxMemberBytes: -1}}, "Options.Reading.MaxMemberBytes is -1"},
		{Options{Crop: Crop{Channels: 2}}, "Options.Crop.Channels is 2; it must be 3"},
		{Options{Crop: Crop{HorizontalFlip: 1.5}}, "Options.Crop.HorizontalFlip is 1.5; it is a probability"},
		{Options{Crop: Crop{HorizontalFlip: math.NaN()}}, "Options.Crop.HorizontalFlip is NaN"},
		{Options{Crop: Crop{HorizontalFlip: 0.5, NoFlip: true}}, "NoFlip is set"},
		{Options{Reading: Reading{MaxSkipRate: -0.1}}, "Options.Reading.MaxSkipRate is -0.1"},
		{Options{Reading: Reading{MaxSkipRate: math.NaN()}}, "Options.Reading.MaxSkipRate is NaN"},
		{Options{Split: "a//b"}, `Options.Split is "a//b"`},
		{Options{Split: "/a"}, `Options.Split is "/a"`},
		{Options{Split: ".."}, `Options.Split is ".."`},
		{Options{Labels: Labels{Classes: []string{"a", "b", "a"}}}, `Options.Labels.Classes: class "a" is there twice`},
		{Options{Labels: Labels{Classes: []string{"a", ""}}}, `Options.Labels.Classes: class 1 is ""`},
		{Options{Crop: Crop{Transform: decode.Resize{Height: -1, Width: 2}}}, "height"},
		{Options{Crop: Crop{Transform: decode.Resize{Height: 2, Width: 2}, Size: 2}}, "Crop.Size"},
		{Options{Crop: Crop{Pad: -1}}, "Crop.Pad is -1"},
		{Options{Crop: Crop{Transform: decode.RandomResizedCrop{Height: 8, Width: 8, MinScale: 2, MaxScale: 3}}}, "scale"},
		{Options{BatchSize: math.MaxInt, Labels: Labels{Classes: []string{"a", "b", "c"}}, Reading: Reading{ShuffleBuffer: 1}}, "BatchSize"},
	} {
		file := path
		if test.options.Reading.ShuffleBuffer == 1 { // this archive is streamed, so its number of images is not known
			file = write(t, "a.tgz", gzipOf(tarOf(numbered(3))))
		}
		l, err := Open(file, test.options)
		if err == nil {
			l.Close()
		}
		wantError(t, err, ErrInvalidOptions)
		if err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got error %q, want %q in it", test.options, err, test.want)
		}
	}
}

func TestOptions_Defaults(t *testing.T) {
	for _, test := range []struct {
		options   Options
		transform decode.Transform
		flip      float64
	}{
		{Options{}, decode.ResizeCenterCrop{Resize: 256, Height: 224, Width: 224}, 0},
		{Options{Train: true}, decode.RandomResizedCrop{Height: 224, Width: 224}, 0.5},
		{Options{Crop: Crop{Size: 56}}, decode.ResizeCenterCrop{Resize: 64, Height: 56, Width: 56}, 0},
		{Options{Train: true, Crop: Crop{Size: 32, Pad: 4}}, decode.RandomCrop{Height: 32, Width: 32, Padding: 4}, 0.5},
		{Options{Crop: Crop{Size: 32, Pad: 4}}, decode.Resize{Height: 32, Width: 32}, 0},
		{Options{Train: true, Crop: Crop{NoFlip: true}}, decode.RandomResizedCrop{Height: 224, Width: 224}, 0},
		{Options{Train: true, Crop: Crop{HorizontalFlip: 0.25}}, decode.RandomResizedCrop{Height: 224, Width: 224}, 0.25},
	} {
		o := must.Get(test.options.complete())(t)
		if o.BatchSize != 128 || o.Crop.Channels != 3 || o.Buffers != 4 || o.Reading.ShuffleBuffer != 256<<20 {
			t.Errorf("%+v: got %+v", test.options, o)
		}
		if o.Crop.Transform != test.transform || o.Crop.HorizontalFlip != test.flip {
			t.Errorf("%+v: got %+v, flip %v", test.options, o.Crop.Transform, o.Crop.HorizontalFlip)
		}
	}
}

func TestOpen_DefaultShape(t *testing.T) {
	members := numbered(3)
	n, height, width, channels := open(t, write(t, "a.tar", tarOf(members)), Options{}).Shape()
	if n != 3 || height != 224 || width != 224 || channels != 3 {
		t.Errorf("got shape %d %d %d %d, want 3 224 224 3", n, height, width, channels)
	}
}
