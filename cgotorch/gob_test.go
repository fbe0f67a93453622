package cgotorch_test

import (
	"bytes"
	"encoding/gob"
	"testing"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestGob(t *testing.T) {
	torchtest.CheckLeaks(t)
	var file bytes.Buffer
	torchtest.Do(t, CPU, func(x *Exec) {
		a := FromSlice(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		state := map[string]*Tensor{
			"view": x.Transpose(a, 0, 1), "scalar": x.Full(Float64, 0.5), "empty": x.Empty(Int64, 0, 3),
			"half": x.To(a, BFloat16), "complex": FromSlice(x, []complex64{1 + 2i}),
		}
		if err := gob.NewEncoder(&file).Encode(state); err != nil {
			t.Fatal(err)
		}
	})
	var state map[string]*Tensor
	if err := gob.NewDecoder(bytes.NewReader(file.Bytes())).Decode(&state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, v := range state {
			v.Close()
		}
	})
	torchtest.Do(t, CPU, func(x *Exec) {
		torchtest.Equal(t, x, state["view"], []float32{1, 4, 2, 5, 3, 6}, 3, 2)
		torchtest.Equal(t, x, state["scalar"], []float64{0.5})
		torchtest.Equal(t, x, state["empty"], []int64{}, 0, 3)
		torchtest.Equal(t, x, x.To(state["half"], Float32), []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		torchtest.Equal(t, x, state["complex"], []complex64{1 + 2i}, 1)
		// A decode inside a Do makes a tensor that the Do does not own.
		data, err := state["scalar"].GobEncode()
		again := new(Tensor)
		if err != nil || again.GobDecode(data) != nil {
			t.Fatal(err)
		}
		torchtest.WantError(t, again.GobDecode(data), ErrInvalidArgument, "decode into a new Tensor")
		again.Close()
	})
}

func TestGob_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	_, err := new(Tensor).GobEncode()
	torchtest.WantError(t, err, ErrUnsupported, "Tensor.GobEncode", "closed")
	encode := func(v any) []byte {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(v); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	type e struct {
		DType string
		Shape []int64
		Data  []byte
	}
	for _, data := range [][]byte{
		nil, []byte("no gob"), encode("text"), encode(e{"float7", nil, nil}), encode(e{"float32", []int64{2}, make([]byte, 7)}),
		encode(e{"float32", []int64{-1, -8}, make([]byte, 32)}), encode(e{"float32", []int64{1 << 62, 4}, nil}), encode(e{"uint8", make([]int64, 65), nil}),
	} {
		var v Tensor
		torchtest.WantError(t, v.GobDecode(data), ErrInvalidArgument, "Tensor.GobDecode")
		if !v.Closed() {
			t.Error("a tensor besides the error")
		}
	}
}
