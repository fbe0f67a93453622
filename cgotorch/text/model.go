package text

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// Options are the options of [Open]. The zero value is good for one conversation.
type Options struct {
	DType cgotorch.DType // of the weights on the device; 0 means the dtype that config.json tells, or else that of the files

	// Stream is the stream on which conversations run. nil means a stream of the model's own. A
	// program that trains the weights gives the stream of its training, or waits for the device
	// between both.
	Stream *cgotorch.Stream

	// Context is the largest number of tokens of a conversation. 0 means what config.json tells,
	// but at most 8192.
	Context int
	// CacheTokens is the number of tokens for which the cache has pages, all conversations
	// together. 0 means Context. A page has 16 tokens of one conversation. Layers with a window
	// have pages for CacheTokens/Context conversations, rounded up.
	CacheTokens int

	// Quantize makes the weights of products narrow when they are loaded: "int8", or "fp8" (e4m3),
	// each with a scale for a row. A token then reads about half the bytes. Embeddings, norms,
	// routers and experts stay as they are. With "int4" products and experts have 4 bits, and a
	// scale for each 32 columns. With "int4-128" a scale is for 128 columns, which takes 8 % fewer
	// bytes and changes more; some mixtures are slower with it. "mxfp4" is for experts alone, which
	// then have 4 bits, and a power of two for each 32 columns: those of gpt_oss as they are
	// published, and others rounded. [Model.QuantizationError] tells what that changes. Open needs
	// no memory for the wide weights of more than one product, or of one layer's experts where a
	// tensor has all of them. Such a model is neither saved nor trained.
	Quantize string

	// DeviceMemory bounds the bytes of weights and cache on the device. 0 means no bound. If the
	// experts of a mixture do not all fit, all of them lie in page-locked host memory, and the
	// device keeps those that tokens have picked last: see [weights.Table]. Such a model is not
	// trained.
	//
	// On CUDA this needs compute capability 9.0, and bfloat16 or float16. Open fails with
	// [cgotorch.ErrInvalidArgument] if the kernels do not take the model. It fails with
	// [cgotorch.ErrOutOfMemory], and says how much is needed, if the rest does not fit. On the CPU
	// this shows the sizes alone: tokens do not use the slots, and all counts stay 0.
	DeviceMemory int64
	// ExpertPolicy says which expert gives up its slot: [weights.LRU], the zero value, or
	// [weights.LFU]. Where there are slots, Open fails with [weights.ErrInvalidOptions] for another
	// one.
	ExpertPolicy weights.Policy
	// PredictExperts lets the copy engine bring experts that the next layer will probably pick,
	// while the device computes a layer. This is for budgets so small that the engine brings a
	// token's experts, and for one answer at a time. It takes the memory of the picks of one layer.
	// It changes no answer, and pauses where fewer than 97 % are picked: [Model.ExpertStats] tells
	// both counts. A Batcher with Reproducible takes no part, and neither does the CPU.
	PredictExperts bool

	// RandomWeights is a seed. If it is not 0, the weights are drawn on the device, and the folder
	// needs no more than a config.json. Such a model shows what a machine can do, and answers
	// nonsense.
	RandomWeights uint64

	// Adapter is a folder as PEFT writes it for LoRA, or its id in Hugging Face's cache. Its
	// matrices are merged into the weights. If it has a tokenizer, that one is the model's.
	Adapter string
}

// Model is a decoder with its tokenizer, on one device. It may be used from any goroutine.
type Model struct {
	// Weights are the tensors of the model, with the names of its files. They are the parameters
	// that an optimizer trains, and require gradients: see [nn.Freeze].
	Weights []nn.Named `state:",named"`
	// Tokenizer is that of the folder's tokenizer.json or tekken.json, or nil if it has neither.
	Tokenizer *tokenizer.Tokenizer

	folder       string
	tokensFolder string // of the tokenizer's files
	d            *decoder
	pages        *pages
	lane         *lane
	batches      []*batch // of Batchers; guarded by the lane's mutex
	stream       *cgotorch.Stream
	own          bool // the stream is the model's
	closed       atomic.Bool
	context      int
	quantize     string
	narrowed     float64 // the relative error of quantize
	searched     time.Duration
	table        *weights.Table // of experts in host memory, or nil
	onDevice     atomic.Int64   // bytes of its slots and passes; goroutines may ask while they change

	generation generationConfig
	eos        []int64 // tokens that end an answer
	schemas    schemaMasks
}

// Open makes a model of a folder as Hugging Face's save_pretrained writes it. It reads config.json,
// generation_config.json, tokenizer.json, and the weights in safetensors files. It waits for the
// device. The caller must Close the model.
//
// In place of a folder there may be an id such as Qwen/Qwen3-8B. It stands for the snapshot in
// Hugging Face's cache. Nothing is downloaded. The folder of a LoRA adapter stands for the model
// that it names, with the adapter merged.
//
// On a GPU the first Open of a model looks for the fastest sizes of its kernels, for some 30 s at
// most, and stores them in the user's cache folder: see [KernelStats].
//
// Open knows the families llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, olmo2, mixtral,
// qwen3_moe and gpt_oss. It reads weights of 8 and 4 bits as compressed-tensors, gptq, awq, fp8 and
// mxfp4 publish them, and computes with their values in the model's dtype. It fails with
// [cgotorch.ErrInvalidArgument] for another model_type or another form of quantised weights, and if
// a tensor is missing, unknown or of another shape. It fails
// with [cgotorch.ErrOutOfMemory] if the model needs more memory than is free, before it loads
// anything, and as [tokenizer.Open] does. Errors name the file, and the field or tensor.
func Open(device cgotorch.Device, folder string, o Options) (*Model, error) {
	folder, c, err := o.read(folder)
	if err != nil {
		return nil, err
	}
	generation, eos, err := readGenerationConfig(folder, c.eos)
	if err != nil {
		return nil, err
	}
	m := &Model{generation: generation, eos: eos, folder: folder, tokensFolder: folder, stream: o.Stream}
	if o.Adapter != "" && hasTokenizer(o.Adapter) {
		m.tokensFolder = o.Adapter
	}
	if hasTokenizer(m.tokensFolder) {
		if m.Tokenizer, err = tokenizer.Open(m.tokensFolder); err != nil {
			return nil, fmt.Errorf("text: %w", err)
		}
	}
	if err := o.bound(c); err != nil {
		return nil, err
	}
	m.context, m.quantize = o.Context, o.Quantize
	if m.stream == nil {
		m.own = true
		if m.stream, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "text"}); err != nil {
			return nil, err
		}
	} else if m.stream.Device() != device {
		return nil, fmt.Errorf("text: Options.Stream is of %v, and the model is to be on %v: %w", m.stream.Device(), device, cgotorch.ErrInvalidArgument)
	}
	if err := m.make(c, o); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// read finds a folder and reads its config.json, and checks what that tells beside the options.
func (o *Options) read(folder string) (string, *decoderConfig, error) {
	if !slices.Contains([]string{"", "int8", "fp8", int4, int4By128, mxfp4}, o.Quantize) {
		return "", nil, fmt.Errorf("text: Quantize is %q, want \"\", int8, fp8, int4, int4-128 or mxfp4: %w", o.Quantize, cgotorch.ErrInvalidArgument)
	}
	folder, err := o.find(folder)
	if err != nil {
		return "", nil, err
	}
	c, err := readDecoderConfig(folder)
	if err != nil {
		return "", nil, err
	}
	if c.published != nil && o.RandomWeights == 0 {
		if c.quantized, err = c.published.quantization(); err != nil {
			return "", nil, fmt.Errorf("text: %s: %w", filepath.Join(folder, "config.json"), err)
		}
	}
	c.predicts = o.PredictExperts
	if hasCodes4(o.Quantize) {
		err = c.takesCodes4(o.Quantize)
	}
	return folder, c, err
}

const mostCacheTokens = 1 << 40

// bound fills Context and CacheTokens, and checks them.
func (o *Options) bound(c *decoderConfig) error {
	if o.Context == 0 {
		o.Context = min(c.context, 8192)
	}
	if o.CacheTokens == 0 {
		o.CacheTokens = o.Context
	}
	switch {
	case o.Context < 1 || o.Context > c.context:
		return fmt.Errorf("text: Context is %d, and the model takes 1 to %d tokens: %w", o.Context, c.context, cgotorch.ErrInvalidArgument)
	case o.CacheTokens < 1 || o.CacheTokens > mostCacheTokens:
		return fmt.Errorf("text: CacheTokens is %d, want 1 to %d: %w", o.CacheTokens, mostCacheTokens, cgotorch.ErrInvalidArgument)
	}
	return nil
}

// make makes the tensors, and loads or draws their values.
func (m *Model) make(c *decoderConfig, o Options) error {
	files := weightSet{}
	if o.RandomWeights == 0 {
		paths, err := weightFiles(m.folder)
		if err != nil {
			return err
		}
		files, err = openWeights(paths)
		defer files.close()
		if err != nil {
			return err
		}
	}
	dtype, err := o.dtype(c, files)
	if err == nil {
		err = m.tensors(c, o, dtype)
	}
	if err == nil {
		err = m.fill(o, files)
	}
	if err == nil {
		err = m.choose()
	}
	return err
}

// dtype returns that of the weights on the device.
func (o *Options) dtype(c *decoderConfig, files weightSet) (cgotorch.DType, error) {
	dtype := cmp.Or(o.DType, c.dtype)
	if dtype == 0 {
		dtype = files.dtype()
	}
	switch dtype {
	case cgotorch.Float32, cgotorch.BFloat16, cgotorch.Float16, cgotorch.Float64:
		return dtype, nil
	}
	return 0, fmt.Errorf("text: DType is %v, want float32, bfloat16, float16 or float64: %w", dtype, cgotorch.ErrInvalidArgument)
}

// tensors makes the tensors, whose values are undefined.
func (m *Model) tensors(c *decoderConfig, o Options, dtype cgotorch.DType) error {
	codes4, narrow := "", o.Quantize != "" && o.Quantize != mxfp4
	if hasCodes4(o.Quantize) {
		codes4 = o.Quantize
	}
	kernels, err := c.kernels(m.stream.Device(), dtype, narrow)
	if err != nil {
		return err
	}
	part := promptPart(kernels.flash)
	spans := c.spans(m.context, part)
	pages := pagesFor(spans, o.CacheTokens, m.context)
	room, err := c.fits(m.stream.Device(), o.DeviceMemory, dtype, pages, o.Quantize)
	if err == nil && room.slots > 0 && m.stream.Device().IsCUDA() {
		err = c.takesSlots(kernels)
	}
	if err != nil {
		return err
	}
	return m.stream.Do(func(x *cgotorch.Exec) (err error) {
		x = plain(x)
		if room.slots > 0 {
			if m.table, err = weights.NewTable(x, c.table(dtype, o.Quantize, room, o.ExpertPolicy)); err != nil {
				return err
			}
		}
		mk := &maker{x: x, c: c, dtype: dtype, kernelChoice: kernels, quantize: narrow, codes4: codes4, wide4: room.wide, table: m.table}
		m.d = mk.decoder()
		m.d.room = room
		m.onDevice.Store(m.table.DeviceBytes())
		mk.keep()
		m.Weights = m.d.Weights
		m.pages = newPages(x, m.d, pages)
		r, results := newSeats(x, m.d, m.pages, spans, m.context, part, 1), newResults(x, 1)
		m.lane = newLane(x, r, 0, results)
		m.lane.logits = x.Zeros(m.d.wide, 1, int64(c.vocab))
		for _, t := range slices.Concat(r.tensors(), m.lane.tensors(), results.all[:]) { // none is kept if one of them fails
			x.Keep(t)
		}
		return nil
	})
}

// fill gives all weights their values: those of the files, or drawn ones, with the matrices of an
// adapter. It waits for the device.
func (m *Model) fill(o Options, files weightSet) (err error) {
	sources := map[string]source{}
	if o.RandomWeights == 0 {
		if sources, err = m.d.match(files); err != nil {
			return err
		}
	}
	var merged *adapter
	if o.Adapter != "" {
		if merged, err = openAdapter(o.Adapter); err != nil {
			return err
		}
		defer merged.of.close()
	}
	some := func(named []nn.Named) (err error) {
		if o.RandomWeights != 0 {
			err = m.stream.Do(func(x *cgotorch.Exec) error { return m.d.randomize(plain(x), o.RandomWeights, named) })
		} else {
			var from []source
			for _, n := range named {
				s := sources[n.Name]
				s.to, s.host = n.Tensor, m.d.host[n.Name]
				from = append(from, s)
			}
			err = fillSources(m.stream, from)
		}
		if err == nil && merged != nil {
			err = m.stream.Do(func(x *cgotorch.Exec) error { return merged.merge(plain(x), m.d, named) })
		}
		return err
	}
	if err = some(m.d.Weights); err == nil && o.Quantize != "" {
		m.narrowed, err = m.d.narrow(m.stream, o, sources, some)
	}
	if err == nil && merged != nil {
		err = merged.rest()
	}
	if err == nil {
		err = m.stream.Synchronize() // other streams may use the weights at once
	}
	return err
}

// Forward maps ids, Int64 [batch, n], to logits [batch, n, vocabulary] in float32, or in float64
// for a model of float64. Each row of ids is a whole sequence. Autograd records the pass if x
// records: see [cgotorch.Exec.NoGrad]. Forward does not use the cache. It waits for the device if
// the model has experts, and reads those in host memory over the bus. An id that is no token fails
// on the CPU, and loses a CUDA device.
func (m *Model) Forward(x *cgotorch.Exec, ids *cgotorch.Tensor) *cgotorch.Tensor {
	const where = "Model.Forward"
	wantIDs(x, where, ids, nil)
	if m.quantize != "" && x.GradEnabled() {
		refuse(x, where, "the weights became %s when the model was opened, and are not trained: open it without Options.Quantize, or call Forward in NoGrad", m.quantize)
	}
	if m.d.table != nil && x.GradEnabled() {
		refuse(x, where, "the experts lie in host memory, and are not trained: open the model without Options.DeviceMemory, or call Forward in NoGrad")
	}
	x = x.NoAutocast()
	shape := ids.Shape()
	if n := int(shape[1]); n > m.d.c.context {
		refuse(x, where, "ids has %d tokens in a row, and the model takes at most %d", n, m.d.c.context)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		p := m.d.wholePass(x, int(shape[0]), int(shape[1]))
		logits := m.d.logits(x, m.d.hidden(x, p, x.Reshape(ids, -1)))
		return x.View(logits, shape[0], shape[1], -1)
	})
}

// QuantizationError returns what Options.Quantize has changed: the root of the sum of the squared
// changes of all weights of products, relative to that of the weights. It is 0 without Quantize.
func (m *Model) QuantizationError() float64 { return m.narrowed }

// Close waits for the device, and frees the model's tensors. A Generate that goes on ends with
// [cgotorch.ErrClosed]. Inside a Do, Close fails with [cgotorch.ErrMisuse] if another goroutine
// generates. A second Close does nothing.
func (m *Model) Close() error {
	if m == nil || m.stream == nil || m.closed.Load() {
		return nil
	}
	if l := m.lane; l != nil {
		if err := l.take(m.stream); err != nil {
			return fmt.Errorf("text: Close: %w", err)
		}
		defer l.mu.Unlock()
	}
	if m.closed.Swap(true) {
		return nil
	}
	// Work of other streams, such as a training's, may still read the weights. A lost device has
	// none.
	_ = m.stream.Device().Synchronize()
	var errs []error
	if m.d != nil {
		errs = append(errs, m.d.close())
	}
	errs = append(errs, m.table.Close())
	if m.lane != nil {
		errs = append(errs, m.lane.close(), m.lane.results.close(), m.lane.seats.close())
	}
	errs = append(errs, m.pages.close())
	if m.own {
		errs = append(errs, m.stream.Close())
	}
	return errors.Join(errs...)
}
