package main

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"os"
)

// drawCurves draws a PNG with two plots over the epochs. The losses are on the left, and the
// accuracies are on the right.
func drawCurves(path string, history []Epoch) error {
	of := func(epochs []Epoch, value func(Epoch) float64) plotter.XYs {
		var points plotter.XYs
		for _, e := range epochs {
			points = append(points, plotter.XY{X: float64(e.Epoch), Y: value(e)})
		}
		return points
	}
	var tested []Epoch
	for _, e := range history {
		if e.Tested != nil {
			tested = append(tested, e)
		}
	}
	loss, accuracy := plot.New(), plot.New()
	loss.Title.Text, loss.X.Label.Text, loss.Y.Label.Text = "Loss", "epoch", "cross entropy"
	accuracy.Title.Text, accuracy.X.Label.Text, accuracy.Y.Label.Text = "Test accuracy", "epoch", "%"
	loss.Legend.Top = true
	losses := []any{"train", of(history, func(e Epoch) float64 { return e.TrainLoss })}
	if len(tested) > 0 {
		losses = append(losses, "test", of(tested, func(e Epoch) float64 { return e.TestLoss }))
		if err := plotutil.AddLinePoints(accuracy,
			"top-1", of(tested, func(e Epoch) float64 { return 100 * e.Top1 }),
			"top-5", of(tested, func(e Epoch) float64 { return 100 * e.Top5 })); err != nil {
			return err
		}
	}
	if err := plotutil.AddLinePoints(loss, losses...); err != nil {
		return err
	}
	canvas := vgimg.New(12*vg.Inch, 4.5*vg.Inch)
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Millimeter * 8, PadTop: vg.Millimeter * 3, PadBottom: vg.Millimeter * 3,
		PadLeft: vg.Millimeter * 3, PadRight: vg.Millimeter * 3}
	for i, c := range plot.Align([][]*plot.Plot{{loss, accuracy}}, tiles, draw.New(canvas))[0] {
		[]*plot.Plot{loss, accuracy}[i].Draw(c)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
