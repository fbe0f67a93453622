package stops

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// The text ends before the first stop, wherever pieces are cut, and holds back no more than may
// still become one.
func TestFinder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := func(n int) string {
		text := make([]byte, n)
		for i := range text {
			text[i] = "ab"[r.IntN(2)]
		}
		return string(text)
	}
	for range 20_000 {
		whole := letters(r.IntN(12))
		f := Finder{}
		want, stopped := whole, false
		for range r.IntN(3) {
			stop := letters(1 + r.IntN(4))
			f.Texts = append(f.Texts, stop)
			if at := strings.Index(whole, stop); at >= 0 && (!stopped || at < len(want)) {
				want, stopped = whole[:at], true
			}
		}
		got, found := "", false
		for rest := whole; rest != "" && !found; {
			n := 1 + r.IntN(len(rest))
			var text string
			text, found = f.Add(rest[:n])
			got, rest = got+text, rest[n:]
			if missing := len(whole) - len(rest) - len(got); !found && missing > 3 {
				t.Fatalf("%q, %q: %d bytes are held back", whole, f.Texts, missing)
			}
		}
		got += f.Flush()
		// A stop is found when its last byte comes. Another that begins before it may end later.
		if found != stopped || found && !strings.HasPrefix(got, want) || !found && got != want {
			t.Fatalf("%q until %q: %q, %v; want %q, %v", whole, f.Texts, got, found, want, stopped)
		}
	}
}
