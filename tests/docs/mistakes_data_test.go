package docs

import (
	"context"
	"fmt"
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
	{"a row with a cell too few", "t.csv: row 2: it has 1 columns, want 2…give each row a cell", func(folder string) error { return csv(folder, "a,b\n1,2\n3\n") }},
	{"a text in a column of numbers", `t.csv: row 2, column "x": "n/a" is no float32…write a number`, func(folder string) error {
		return csv(folder, "x\n1\nn/a\n", data.Field{Name: "x", DType: f32})
	}},
	{"a column that is not there", `t.csv has no column "heigth"…it has "height", "width"`, func(folder string) error {
		return csv(folder, "height,width\n1,2\n", data.Field{Name: "heigth", DType: f32})
	}},
	{"a class that the training did not have", `t.csv: row 2, column "town": "Ulm" is none of the 1 Classes…ReadClasses`, func(folder string) error {
		return csv(folder, "town\nBonn\nUlm\n", data.Field{Name: "town", DType: i64, Classes: []string{"Bonn"}})
	}},
	{"JSON without a field", `reviews.jsonl: row 2, column "label": the object has no such value…name the field as the rows do`, func(folder string) error {
		path := textFile(folder, "reviews.jsonl", `{"label": 1}`+"\n"+`{"lable": 0}`+"\n")
		l := cgotorch.Must(data.OpenJSONLines(path, data.JSONLinesOptions{Fields: []data.Field{{Name: "label", DType: i64}}}))
		return epoch(data.NewStreamLoader(l, data.Options{}))
	}},
	{"a CSV file as Parquet", "t.parquet: it is no Parquet file…copy it again", func(folder string) error {
		_, err := parquet.Open(textFile(folder, "t.parquet", "a,b\n1,2\n"), parquet.Options{})
		return err
	}},
	{"columns of other lengths", `column "y" int64 has 10 samples, and "x" float32[2] has 5…Of the shape of one sample`, func(string) error {
		_, err := data.NewTable(data.Of("x", make([]float32, 10), 2), data.Of("y", make([]int64, 10)))
		return err
	}},
	{"a text longer than the padding", `sample 0 of the batch: column "tokens": it has length 5…set Pad.Length or Pad.Truncate`, func(string) error {
		t := cgotorch.Must(data.NewTable(data.OfRows("tokens", [][]int{{1, 2, 3, 4, 5}})))
		return epoch(data.NewLoader(t, data.Options{Pad: map[string]data.Pad{"tokens": {Length: 4}}}))
	}},
	{"an empty cell, standardized", `t.csv: row 2, column "size": it is NaN…leave the row out`, func(folder string) error {
		c := cgotorch.Must(data.OpenCSV(textFile(folder, "t.csv", "size,price\n1,2\n,3\n"), data.CSVOptions{EmptyNaN: true}))
		_, err := data.ReadStandardizer(context.Background(), c, "size")
		return err
	}},
	{"files of another ending", `there is no file "*.wav"…check the folder and FilesOptions.Pattern`, func(string) error {
		_, err := data.NewFiles(fstest.MapFS{"a/1.flac": {Data: []byte("x")}}, data.FilesOptions{Pattern: "*.wav"})
		return err
	}},

	// Serving.
	{"a request of another shape", `input "x" has the shape [1 3]…want [n 2]`, func(string) error { return predict(serve.Of(make([]float32, 3), 1, 3)) }},
	{"a model that adds up the batch", "result 0 of the function is float32[] for 32 entries…its first dimension must be that of the inputs", func(string) error {
		b, err := serve.New(cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{x.Sum(in[0])} },
			serve.Options{Inputs: []serve.Spec{{Name: "x", DType: f32, Shape: []int64{2}}}})
		if err == nil {
			b.Close()
		}
		return err
	}},
	{"a body that is no JSON", "400…no JSON of the protocol: invalid character 'x'…looking for beginning of value", func(string) error { return infer("x=1") }},
	{"an input of another name", `400…the request has the inputs [\"image\"]…want [\"x\"]`, func(string) error {
		return infer(`{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}`)
	}},
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

// csv reads all rows of a file.
func csv(folder, text string, fields ...data.Field) error {
	c, err := data.OpenCSV(textFile(folder, "t.csv", text), data.CSVOptions{Fields: fields})
	if err != nil {
		return err
	}
	return epoch(data.NewStreamLoader(c, data.Options{}))
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
