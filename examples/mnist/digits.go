package main

import (
	"math/rand/v2"

	"github.com/streamtorch/streamtorch/imageloader/idx"
)

// The font has 5 rows of 3 points for each digit.
var font = [10]string{
	"####.##.##.####", ".#.##..#..#.###", "###..#####..###", "###..####..####", "#.##.####..#..#",
	"####..###..####", "####..####.####", "###..#..#..#..#", "####.#####.####", "####.####..####",
}

// draw returns n images of digits, each at another place, with another brightness and with noise.
func draw(n int, seed uint64) idx.Set {
	random := rand.New(rand.NewPCG(seed, 0))
	set := idx.Set{Images: make([]byte, n*side*side), Labels: make([]byte, n), N: n, Height: side, Width: side}
	for i := range n {
		digit, top, left, brightness := random.IntN(10), 1+random.IntN(6), 5+random.IntN(6), 120+random.IntN(136)
		set.Labels[i] = byte(digit)
		for p := range side * side {
			value := random.IntN(100)
			if y, x := p/side-top, p%side-left; y >= 0 && y < 20 && x >= 0 && x < 12 && font[digit][y/4*3+x/4] == '#' {
				value = brightness
			}
			set.Images[i*side*side+p] = byte(value)
		}
	}
	return set
}
