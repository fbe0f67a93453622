package docs

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing/fstest"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
	"github.com/streamtorch/streamtorch/cgotorch/data/parquet"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

var dataMistakes = []mistake{
	// Tables and texts.
	{
		name:    "a row with a cell too few",
		want:    "t.csv: row 2: it has 1 columns, want 2…give each row a cell",
		outside: func(string) error { return epoch(csv("a,b\n1,2\n3\n", data.CSVOptions{}, data.Options{})) },
	},
	{
		name: "a text in a column of numbers",
		want: `t.csv: row 2, column "x": "n/a" is no float32…write a number`,
		outside: func(string) error {
			return epoch(csv("x\n1\nn/a\n", data.CSVOptions{Fields: fields("x")}, data.Options{}))
		},
	},
	{
		name: "a column that is not there",
		want: `t.csv has no column "heigth"…it has "height", "width"`,
		outside: func(string) error {
			return epoch(csv("height,width\n1,2\n", data.CSVOptions{Fields: fields("heigth")}, data.Options{}))
		},
	},
	{
		name: "a class that the training did not have",
		want: `t.csv: row 2, column "town": "Ulm" is none of the 1 Classes…ReadClasses`,
		outside: func(string) error {
			return epoch(csv("town\nBonn\nUlm\n", data.CSVOptions{Fields: []data.Field{{Name: "town", DType: i64, Classes: []string{"Bonn"}}}}, data.Options{}))
		},
	},
	{
		name: "JSON without a field",
		want: `reviews.jsonl: row 2, column "label": the object has no such value…name the field as the rows do`,
		outside: func(folder string) error {
			return lines(folder, `{"label": 1}`+"\n"+`{"lable": 0}`+"\n")
		},
	},
	{
		name: "a CSV file as Parquet",
		want: "t.parquet: it is no Parquet file…copy it again",
		outside: func(folder string) error {
			_, err := parquet.Open(textFile(folder, "t.parquet", "a,b\n1,2\n"), parquet.Options{})
			return err
		},
	},
	{
		name: "columns of other lengths",
		want: `column "y" int64 has 10 samples, and "x" float32[2] has 5…Of the shape of one sample`,
		outside: func(string) error {
			_, err := data.NewTable(data.Of("x", make([]float32, 10), 2), data.Of("y", make([]int64, 10)))
			return err
		},
	},
	{
		name: "a text longer than the padding",
		want: `sample 0 of the batch: column "tokens": it has length 5…set Pad.Length or Pad.Truncate`,
		outside: func(string) error {
			t, err := data.NewTable(data.OfRows("tokens", [][]int{{1, 2, 3, 4, 5}}))
			if err != nil {
				return err
			}
			return epoch(data.NewLoader(t, data.Options{Pad: map[string]data.Pad{"tokens": {Length: 4}}}))
		},
	},
	{
		name: "an empty cell, standardized",
		want: `houses.csv: row 2, column "size": it is NaN…leave the row out`,
		outside: func(string) error {
			c, err := data.NewCSV("houses.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("size,price\n1,2\n,3\n")), nil },
				data.CSVOptions{EmptyNaN: true})
			if err != nil {
				return err
			}
			_, err = data.ReadStandardizer(context.Background(), c, "size")
			return err
		},
	},
	{
		name: "files of another ending",
		want: `there is no file "*.wav"…check the folder and FilesOptions.Pattern`,
		outside: func(string) error {
			_, err := data.NewFiles(fstest.MapFS{"a/1.flac": {Data: []byte("x")}}, data.FilesOptions{Pattern: "*.wav"})
			return err
		},
	},

	// Serving.
	{
		name:    "a request of another shape",
		want:    `input "x" has the shape [1 3]…want [n 2]`,
		outside: func(string) error { return predict(serve.Of(make([]float32, 3), 1, 3)) },
	},
	{
		name:    "a request without the batch",
		want:    `input "x" has the shape [2]…want [n 2]`,
		outside: func(string) error { return predict(serve.Of(make([]float32, 2))) },
	},
	{
		name: "a model that adds up the batch",
		want: "result 0 of the function is float32[] for 32 entries…its first dimension must be that of the inputs",
		outside: func(string) error {
			b, err := serve.New(cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{x.Sum(in[0])} },
				serve.Options{Inputs: []serve.Spec{{Name: "x", DType: f32, Shape: []int64{2}}}})
			if err == nil {
				b.Close()
			}
			return err
		},
	},
	{
		name:    "a body that is no JSON",
		want:    "400…no JSON of the protocol: invalid character 'x'…looking for beginning of value",
		outside: func(string) error { return infer("x=1") },
	},
	{
		name: "an input of another name",
		want: `400…the request has the inputs [\"image\"]…want [\"x\"]`,
		outside: func(string) error {
			return infer(`{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}`)
		},
	},
}

func lines(folder, text string) error {
	l, err := data.OpenJSONLines(textFile(folder, "reviews.jsonl", text), data.JSONLinesOptions{Fields: []data.Field{{Name: "label", DType: i64}}})
	if err != nil {
		return err
	}
	return epoch(data.NewStreamLoader(l, data.Options{}))
}

func batcher() (*serve.Batcher, error) {
	return serve.New(cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{x.MulScalar(in[0], 2)} },
		serve.Options{Inputs: []serve.Spec{{Name: "x", DType: f32, Shape: []int64{2}}}})
}

func predict(inputs ...serve.Array) error {
	b, err := batcher()
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = b.Predict(context.Background(), inputs...)
	return err
}

// infer posts a body. It returns the text of an answer that is no success.
func infer(body string) error {
	models := serve.NewRepository(serve.RepositoryOptions{})
	defer models.Close()
	if err := models.Add("double", "1", func() (*serve.Model, error) {
		b, err := batcher()
		return &serve.Model{Batcher: b}, err
	}); err != nil {
		return err
	}
	if err := models.Load(context.Background(), "double", ""); err != nil {
		return err
	}
	answer := httptest.NewRecorder()
	oip.NewHandler(models, oip.Options{}).ServeHTTP(answer, httptest.NewRequest("POST", "/v2/models/double/infer", strings.NewReader(body)))
	if answer.Code == 200 {
		return nil
	}
	return fmt.Errorf("%d %s", answer.Code, answer.Body)
}

func fields(name string) []data.Field { return []data.Field{{Name: name, DType: f32}} }

func csv(text string, o data.CSVOptions, l data.Options) (*data.Loader, error) {
	c, err := data.NewCSV("t.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }, o)
	if err != nil {
		return nil, err
	}
	return data.NewStreamLoader(c, l)
}

func epoch(l *data.Loader, err error) error {
	if err != nil {
		return err
	}
	defer l.Close()
	for b, err := range l.Epoch(context.Background()) {
		if err != nil {
			return err
		}
		b.Release()
	}
	return nil
}
