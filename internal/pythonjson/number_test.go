package pythonjson

import "testing"

func TestReplace(t *testing.T) {
	const text, want = `{"NaN": NaN, "a": [-Infinity, Infinity, "\"NaN", NaNs, 1]}`, `{"NaN": <NaN>, "a": [<-Infinity>, <Infinity>, "\"NaN", NaNs, 1]}`
	got := Replace([]byte(text), func(number []byte) []byte { return []byte("<" + string(number) + ">") })
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
