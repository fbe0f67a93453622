package prefetcher

import (
	"math"
	"testing"
)

func TestRandomErasing_Distribution(t *testing.T) {
	for _, want := range distributions(t, "RandomErasing") {
		e := RandomErasing{Probability: 1, MinScale: want.Scale[0], MaxScale: want.Scale[1], MinRatio: want.Ratio[0], MaxRatio: want.Ratio[1]}
		got := map[string][]float64{}
		none := 0
		for k := range keys {
			box := e.box(k, want.Height, want.Width)
			top, left, h, w := float64(box[0]), float64(box[1]), float64(box[2]), float64(box[3])
			if h == 0 && w == 0 {
				none++
				continue
			}
			got["area"] = append(got["area"], h*w/float64(want.Height*want.Width))
			got["top"] = append(got["top"], top/(float64(want.Height)-h))
			got["left"] = append(got["left"], left/(float64(want.Width)-w))
			got["height"] = append(got["height"], h)
		}
		for name, s := range want.Values {
			s.check(t, name, want.Draws, got[name])
		}
		if share := float64(none) / keysDrawn; math.Abs(share-want.None) > 0.001 {
			t.Errorf("%v of the images have no box, torchvision's %v", share, want.None)
		}
	}
}

func TestRandomErasing_Probability(t *testing.T) {
	e := RandomErasing{Probability: 0.25}.complete()
	if e.MinScale != 0.02 || e.MaxScale != 0.33 || e.MinRatio != 0.3 || e.MaxRatio != 3.3 {
		t.Errorf("defaults %+v", e)
	}
	always := e
	always.Probability = 1
	erased := 0
	for k := range keys {
		box := e.box(k, 32, 32)
		if box == [4]int32{} {
			continue
		}
		erased++
		if box != always.box(k, 32, 32) {
			t.Fatalf("key %d: the box depends on the probability", k)
		}
	}
	if share := float64(erased) / keysDrawn; math.Abs(share-0.25) > 0.015 {
		t.Errorf("%v of the images are erased, want 0.25", share)
	}
	if box := (RandomErasing{Probability: 1, MinScale: 1, MaxScale: 1}).complete().box(1, 8, 8); box != [4]int32{} {
		t.Errorf("a box of the whole image: %v", box)
	}
}
