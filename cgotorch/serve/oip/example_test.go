package oip_test

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/serve/oip"
)

// A server answers with a model that doubles its input.
func ExampleNewHandler() {
	models := serve.NewRepository(serve.RepositoryOptions{})
	defer models.Close()
	err := models.Add("double", "1", func() (*serve.Model, error) {
		b, err := serve.New(cgotorch.CPU, func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{x.MulScalar(in[0], 2)}
		}, serve.Options{Inputs: []serve.Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{2}}}, Outputs: []string{"y"}})
		return &serve.Model{Batcher: b}, err
	})
	if err == nil {
		err = models.Load(context.Background(), "double", "")
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(oip.NewHandler(models, oip.Options{}))
	defer server.Close()
	body := strings.NewReader(`{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2.5]}]}`)
	answer, err := server.Client().Post(server.URL+"/v2/models/double/infer", "application/json", body)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	_, outputs, _ := strings.Cut(string(text), `"outputs":`)
	fmt.Println(outputs)
	// Output: [{"name":"y","datatype":"FP32","shape":[1,2],"data":[2,5]}]}
}
