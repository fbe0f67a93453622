package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// mixture is the configuration of Qwen3-30B-A3B, whose experts take 58 GB.
var mixture = map[string]any{
	"architectures": []string{"Qwen3MoeForCausalLM"}, "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "hidden_size": 2048,
	"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
	"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
	"mlp_only_layers": []int{}, "vocab_size": 151936, "tie_word_embeddings": false, "max_position_embeddings": 40960,
}

// benchExperts times tokens of a mixture whose experts lie in host memory, at several rates of
// hits, and then a loop in PyTorch at the same rates, which the host drives. Both have 47 slots in
// each layer. They run one after the other, because each takes the host's memory.
func benchExperts(c *config, emit func(row)) error {
	if !c.device.IsCUDA() {
		return fmt.Errorf("experts in host memory need a GPU: %w", cgotorch.ErrUnsupported)
	}
	folder, err := configFolder(mixture)
	defer os.RemoveAll(folder)
	if err != nil {
		return err
	}
	resident, err := expertTokens(c, folder, 0, 1000)
	if err != nil {
		return err
	}
	// So many tokens are drawn among, each as likely. Fewer ones pick fewer experts.
	held, err := expertTokens(c, folder, 27_500_000_000, 1, 8, 10, 16, 20, 1000)
	if err != nil {
		return err
	}
	hits := make([]string, len(held))
	for i, h := range held {
		hits[i] = fmt.Sprintf("%.4f", h.hits)
	}
	theirs, err := c.hostLoop(strings.Join(hits, ","))
	if err != nil {
		return err
	}
	const busRate = 51.1e6 // bytes in a millisecond: of a kernel that reads memory of the host, on PCI Express 5
	for i, h := range held {
		limit := resident[0].ms + h.bytes/busRate
		emit(against(fmt.Sprintf("text/experts/%.3f", h.hits), h.ms, "ms", "PyTorch, driven by the host", theirs[i].ms, lower,
			fmt.Sprintf("%.0f MB a token are missing, and %.0f of PyTorch's; %.3f of the limit, %.3f ms: %.3f ms with all experts on the device, and the missing bytes at 51.1 GB/s; %s",
				h.bytes/1e6, theirs[i].bytes/1e6, h.ms/limit, limit, resident[0].ms, c.settings())))
	}
	return nil
}

// expertToken is what a token takes.
type expertToken struct{ ms, hits, bytes float64 }

// expertTokens opens the mixture and times tokens that are drawn among k, for each k.
func expertTokens(c *config, folder string, deviceMemory int64, ks ...int) (all []expertToken, err error) {
	m, err := text.Open(c.device, folder, text.Options{RandomWeights: 1, Context: 4096, DeviceMemory: deviceMemory})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	// With large embeddings the picks depend on the token most.
	err = cgotorch.DefaultStream(c.device).Do(func(x *cgotorch.Exec) error {
		nn.Copy(x.NoGrad(), m.Weights[0].Tensor, x.MulScalar(x.Detach(m.Weights[0].Tensor), 200))
		return nil
	})
	if err == nil {
		err = c.device.Synchronize()
	}
	for _, k := range ks {
		if err != nil {
			return nil, err
		}
		if _, err = expertTokenOf(m, k); err != nil { // compiles kernels, and makes graphs
			return nil, err
		}
		var one expertToken
		one, err = expertTokenOf(m, k)
		all = append(all, one)
	}
	return all, err
}

// expertTokenOf times 100 tokens behind 100 others.
func expertTokenOf(m *text.Model, k int) (one expertToken, err error) {
	const warm, timed = 100, 100
	bias := map[int64]float64{}
	for i := range k {
		bias[int64(i*131+7)] = 1e4
	}
	talk := m.NewConversation()
	defer talk.Close()
	var before weights.TableStats
	n, began := 0, time.Now()
	o := text.GenerateOptions{MaxTokens: warm + timed, TopK: -1, TopP: 1, Temperature: 100, Bias: bias, Seed: 5, IgnoreEnd: true}
	for _, err := range talk.Generate(context.Background(), []int64{1, 2, 3, 4, 5, 6, 7, 8}, o) {
		if n++; err == nil && n == warm {
			before, err = m.ExpertStats()
			began = time.Now()
		}
		if err != nil {
			return one, err
		}
	}
	one.ms = time.Since(began).Seconds() * 1e3 / timed
	after, err := m.ExpertStats()
	hits, misses := float64(after.Hits-before.Hits), float64(after.Misses-before.Misses)
	one.hits, one.bytes = hits/max(1, hits+misses), float64(after.BusBytes-before.BusBytes)/timed
	return one, err
}

// hostLoop runs the loop in PyTorch at these rates of hits. It returns the faster of its two forms.
func (c *config) hostLoop(hits string) (all []expertToken, err error) {
	command, folder, err := c.script("experts.py", "--hits", hits)
	defer os.RemoveAll(folder)
	if err != nil {
		return nil, err
	}
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("experts.py: %w; PEER_PYTHON is to be a Python that has PyTorch and Triton", err)
	}
	n := len(strings.Split(hits, ","))
	for _, line := range strings.Split(string(out), "\n") {
		var form string
		var target, reached, ms, megabytes float64
		if got, _ := fmt.Sscanf(line, "PEER %s target=%g hits=%g ms=%g missed_MB=%g", &form, &target, &reached, &ms, &megabytes); got == 5 {
			all = append(all, expertToken{ms, reached, megabytes * 1e6})
		}
	}
	if len(all) != 2*n {
		return nil, fmt.Errorf("experts.py told %d times, want %d: %s", len(all), 2*n, out)
	}
	for i := range n {
		if all[n+i].ms < all[i].ms {
			all[i] = all[n+i]
		}
	}
	return all[:n], nil
}
