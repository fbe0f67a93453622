package prefetcher

import (
	"math"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/images"
)

func TestBeta_Distribution(t *testing.T) {
	for _, want := range distributions(t, "Beta") {
		var got []float64
		for k := range keys {
			got = append(got, beta(k, drawLambda, want.Alpha))
		}
		want.Values["lam"].check(t, "lambda", want.Draws, got)
	}
}

func TestBeta_Ends(t *testing.T) {
	for _, alpha := range []float64{1e-300, 1e-3, 0.2, 1, 50, 1e300} {
		for k := range key(2000) {
			if v := beta(k, drawLambda, alpha); !(v >= 0 && v <= 1) {
				t.Fatalf("alpha %v, key %d: %v", alpha, k, v)
			}
		}
	}
}

func TestCutMix_Distribution(t *testing.T) {
	for _, want := range distributions(t, "CutMix") {
		got := map[string][]float64{}
		for k := range keys {
			m := drawMix(k, MixUp{}, CutMix{want.Alpha}, want.Height, want.Width)
			if m.images.Kind != images.CutMix {
				t.Fatalf("%+v", m)
			}
			got["lam"] = append(got["lam"], m.share)
			got["left"] = append(got["left"], float64(m.images.Left))
			got["top"] = append(got["top"], float64(m.images.Top))
			got["right"] = append(got["right"], float64(m.images.Right))
			got["bottom"] = append(got["bottom"], float64(m.images.Bottom))
		}
		for name, s := range want.Values {
			s.check(t, name, want.Draws, got[name])
		}
	}
}

func TestCut_Area(t *testing.T) {
	// The box has half of each side of 8 x 12, with its middle at row 5 and column 1. It covers rows
	// [3, 7) and columns [-2, 4).
	got := cut(0.75, 5, 1, 8, 12)
	want := drawnMix{images.MixOptions{Kind: images.CutMix, Top: 3, Left: 0, Bottom: 7, Right: 4}, 1 - 16./96}
	if got.images.Top != want.images.Top || got.images.Left != want.images.Left || got.images.Bottom != want.images.Bottom ||
		got.images.Right != want.images.Right || got.share != want.share {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if whole := cut(0, 4, 6, 8, 12); whole.share != 0 {
		t.Errorf("lambda 0 in the middle leaves %v of the image", whole.share)
	}
}

func TestDrawMix_EitherAsOften(t *testing.T) {
	ups := 0
	for k := range keys {
		both := drawMix(k, MixUp{0.2}, CutMix{1}, 16, 16)
		one := drawMix(k, MixUp{}, CutMix{1}, 16, 16)
		if both.images.Kind == images.MixUp {
			ups++
			one = drawMix(k, MixUp{0.2}, CutMix{}, 16, 16)
		}
		if both.share != one.share || both.images.Top != one.images.Top || both.images.Kind != one.images.Kind {
			t.Fatalf("key %d: %+v with both, %+v alone", k, both, one)
		}
	}
	if share := float64(ups) / keysDrawn; math.Abs(share-0.5) > 0.02 {
		t.Errorf("MixUp in %v of the batches", share)
	}
}
