package text

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/internal/pace"
)

// EncoderOptions are the options of [OpenEncoder]. The zero value is good for a service.
type EncoderOptions struct {
	DType cgotorch.DType // of the weights on the device; 0 means the dtype that config.json tells, or else that of the files

	// Prompt is the name of a prompt in config_sentence_transformers.json. Its text comes before each
	// text of Embed. "" means the default prompt of that file, if it has one.
	Prompt string
	// Tokens is the largest number of tokens of a batch. A text that has more is a batch of its own.
	// 0 means 16,384 on CUDA and 2,048 on the CPU.
	Tokens int
	// Queue is the largest number of calls that wait, each with any number of texts. 0 means 1,024.
	Queue int
}

// Encoder makes vectors of texts, or scores of pairs of texts. Its methods may be called from any
// number of goroutines. Their texts become batches together.
type Encoder struct {
	*encoding
	prompt string // the text
}

// encoding is what Encoders of several prompts share.
type encoding struct {
	folder  *encoderFolder
	tokens  *tokenizer.Tokenizer
	net     encoderNet
	head    *encoderHead
	weights *encoderWeights
	stream  *cgotorch.Stream
	ranks   bool
	vocab   int
	limit   int // most tokens of a text
	kinds   int // types of tokens in a pair; 0 means that they do not count
	batch   int // most tokens of a batch

	mostRows int                // of a batch that is captured; 0: none is
	captured *cgotorch.Captured // see capturedOf
	sizes    []encoderSize      // to be run while no text waits: eagerly, and captured
	slabs    slabs              // of encoderFlights
	pace     pace.Pace[int]     // by rows, a multiple of 64; of the loop alone
	encoderQueue
}

// OpenEncoder makes an Encoder of a folder as sentence-transformers writes it, or of a snapshot's
// id as [Open] takes it. It waits for the device. The caller must Close the Encoder.
//
// The folder of a SentenceTransformer has a Transformer, then Pooling, then Normalize and Dense in
// any order. That of a CrossEncoder, or of a model for sequence classification, has one label.
//
// On CUDA batches of fewer than 16,384 tokens are captured: of fewer than 4,096 beside a text of
// more than 512, and of fewer with a wide model. OpenEncoder takes the memory for the largest.
// Sizes for texts of up to 512 tokens are captured while no text waits.
//
// OpenEncoder knows the encoders bert, roberta, xlm-roberta, mpnet and modernbert, and the decoders
// of [Open]. The folder's prompts, its largest number of tokens and its activation of scores hold.
//
// OpenEncoder fails with [cgotorch.ErrInvalidArgument] for another model or module, for a field
// whose value is not known, and if a tensor is missing, unknown or of another shape. It fails with
// [cgotorch.ErrOutOfMemory] if the weights need more memory than is free, before it loads them, and
// as [tokenizer.Open] does. Errors name the file, and the field or tensor.
func OpenEncoder(device cgotorch.Device, folder string, o EncoderOptions) (*Encoder, error) {
	tokens := 16384
	if !device.IsCUDA() {
		tokens = 2048
	}
	o.Tokens, o.Queue = cmp.Or(o.Tokens, tokens), cmp.Or(o.Queue, 1024)
	for _, n := range []struct {
		name  string
		value int
	}{{"Tokens", o.Tokens}, {"Queue", o.Queue}} {
		if n.value < 1 || n.value > 1<<24 {
			return nil, fmt.Errorf("text: OpenEncoder: %s is %d, want 1 to %d: %w", n.name, n.value, 1<<24, cgotorch.ErrInvalidArgument)
		}
	}
	f, err := readEncoderFolder(folder)
	if err != nil {
		return nil, err
	}
	e := &Encoder{encoding: &encoding{folder: f, batch: o.Tokens, weights: &encoderWeights{}, pace: pace.New[int](), encoderQueue: newEncoderQueue(o.Queue)}}
	if e.prompt, err = f.promptOf(o.Prompt); err != nil {
		return nil, err
	}
	if e.tokens, err = tokenizer.Open(f.model); err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	if e.stream, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "text encoder"}); err != nil {
		return nil, err
	}
	if err = e.make(o); err == nil {
		err = e.checkLimit()
	}
	e.weights.close()
	if err == nil {
		err = e.stream.Synchronize()
	}
	if err != nil {
		return nil, errors.Join(err, e.free())
	}
	if !checksFinite() {
		e.mostRows = min(e.net.mostCaptured(), roundRows(e.batch))
	}
	e.captured = cgotorch.NewCaptured(e.capturedOf, cgotorch.CapturedOptions{WarmUp: 1, MaxGraphs: mostGraphs})
	if sizes := encoderSizes(e.limit, e.mostRows); len(sizes) > 0 {
		for range 2 {
			e.prepare(sizes[len(sizes)-1]) // the others share its memory
		}
		for _, size := range sizes[:len(sizes)-1] {
			e.sizes = append(e.sizes, size, size)
		}
	}
	go e.loop()
	return e, nil
}

// make makes the network and its head. It waits for the device.
func (e *encoding) make(o EncoderOptions) error {
	if _, ok := encoderFamilies[e.folder.hub.ModelType]; ok {
		return e.makeBidirectional(o)
	}
	c, err := readDecoderConfig(e.folder.model)
	if err != nil {
		return err
	}
	if e.folder.modules == nil {
		return fmt.Errorf("text: %s: %w", filepath.Join(e.folder.model, "config.json"), refused("model_type is %q, and only encoders rank", e.folder.hub.ModelType))
	}
	e.vocab = c.vocab
	e.bound(c.context)
	net, err := openCausal(e.stream, e.folder.model, c, o.DType)
	if net != nil {
		e.net = net
	}
	if err == nil {
		e.head, err = e.folder.head(e.weights, c.width)
	}
	if err == nil {
		err = e.weights.fill(e.stream)
	}
	return err
}

// makeBidirectional is make for a model of encoderFamilies.
func (e *encoding) makeBidirectional(o EncoderOptions) error {
	f, w := e.folder, e.weights
	c, err := readEncoderConfig(f.model, &f.hub)
	if err != nil {
		return err
	}
	if c.rank != nil && f.modules == nil {
		e.ranks = true
		if err := c.rank.scores("activation_fn", f.activation); err != nil { // it counts more than that of config.json
			return fmt.Errorf("text: %s: %w", filepath.Join(f.path, "config_sentence_transformers.json"), err)
		}
		if o.Prompt != "" {
			return fmt.Errorf("text: %s: %w", f.path, refused("the model ranks, and pairs of texts have no prompt: leave EncoderOptions.Prompt out"))
		}
		if f.prompts[f.prompt] != "" {
			return fmt.Errorf("text: %s: %w", filepath.Join(f.path, "config_sentence_transformers.json"), refused("default_prompt_name is %q, and pairs of texts have no prompt", f.prompt))
		}
	}
	e.vocab = c.vocab
	e.bound(c.context)
	if c.pairKinds {
		e.kinds = c.kinds
	}
	if err := w.open(f.model, c.prefix); err != nil {
		return err
	}
	model := Options{DType: o.DType}
	if w.dtype, err = model.dtype(&decoderConfig{dtype: c.dtype}, w.files); err != nil {
		return err
	}
	flash, err := c.flashes(e.stream.Device(), w.dtype)
	if err != nil {
		return err
	}
	net := newBidirectional(c, w, flash)
	e.net = net
	if e.ranks {
		e.head = c.rankHead(w)
	} else if e.head, err = f.head(w, c.width); err != nil {
		return err
	}
	if err := w.fill(e.stream); err != nil {
		return err
	}
	w.pack(e.stream)
	return net.prepare(e.stream)
}

// bound sets the largest number of tokens of a text.
func (e *encoding) bound(context int) {
	e.limit = context
	if e.folder.limit > 0 {
		e.limit = min(context, e.folder.limit)
	}
	e.tokens = e.tokens.Limit(e.limit)
}

// checkLimit fails if the largest number of tokens leaves no room for a text.
func (e *Encoder) checkLimit() error {
	around, err := e.tokens.Encode(""), error(nil)
	if e.ranks {
		around, _, err = e.tokens.EncodePair("", "")
	}
	if err == nil && e.limit <= len(around) {
		err = refused("a text may have %d tokens, and %d stand around it: max_seq_length is too small", e.limit, len(around))
	}
	if err != nil {
		return fmt.Errorf("text: %s: %w", e.folder.path, err)
	}
	return nil
}

// flashes reports whether attention takes LibTorch's flash attention.
func (c *encoderConfig) flashes(device cgotorch.Device, dtype cgotorch.DType) (bool, error) {
	if !device.IsCUDA() || dtype.Size() != 2 || c.buckets > 0 || c.head%8 != 0 || c.head > 256 {
		return false, nil
	}
	capability, err := capabilityOf(device)
	return capability >= 80, err
}

// WithPrompt returns an Encoder of the same model whose texts begin with another prompt of the
// folder. "" names the default one. It takes no memory, and is closed with e. It fails with
// [cgotorch.ErrInvalidArgument] for an unknown name, and for an Encoder that ranks.
func (e *Encoder) WithPrompt(name string) (*Encoder, error) {
	if e.ranks {
		return nil, fmt.Errorf("text: WithPrompt: %w", refused("the model ranks, and pairs of texts have no prompt"))
	}
	prompt, err := e.folder.promptOf(name)
	if err != nil {
		return nil, err
	}
	return &Encoder{e.encoding, prompt}, nil
}

// Tokens returns the tokens of a text as [Encoder.Embed] computes them: behind the prompt, and with
// those around a text. `cut` is how many more the text has than the model takes.
func (e *Encoder) Tokens(text string) (ids []int64, cut int) {
	ids = e.tokens.Encode(e.prompt + text)
	if len(ids) >= e.limit {
		cut = max(0, e.tokens.Count(e.prompt+text)-len(ids))
	}
	return ids, cut
}

// longText is the number of bytes from which on texts of a call become tokens one after another. A
// text takes a hundred times its size meanwhile.
const longText = 1 << 14

// Embed returns the vectors of texts. A text that has more tokens than the folder allows is cut. It
// waits for the device, and holds no OS thread meanwhile. The result is the caller's.
//
// Embed fails with [serve.ErrQueueFull] at once if too many calls wait, with the cause of ctx when
// ctx ends, with [cgotorch.ErrClosed] after Close, and with [cgotorch.ErrInvalidArgument] for a
// text without tokens and for an Encoder that ranks. An error of one call does not change those of
// others.
func (e *Encoder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	var long sync.Mutex
	return e.call(ctx, "Embed", false, len(texts), func(i int) (*encoderText, error) {
		if len(texts[i]) >= longText {
			long.Lock()
			defer long.Unlock()
		}
		return &encoderText{tokens: e.tokens.Encode(e.prompt + texts[i])}, nil
	})
}

// EmbedTokens is [Encoder.Embed] for tokens, with those around each text. No prompt comes before
// them, and none is cut. It also fails with [cgotorch.ErrInvalidArgument] for an id that is no
// token, and for a text of too many tokens.
func (e *Encoder) EmbedTokens(ctx context.Context, texts [][]int64) ([][]float32, error) {
	return e.call(ctx, "EmbedTokens", false, len(texts), func(i int) (*encoderText, error) {
		return &encoderText{tokens: slices.Clone(texts[i])}, nil // a batch may read them after ctx has ended
	})
}

// Rank returns how well each text answers a query. The scores are those of CrossEncoder: between 0
// and 1, unless the folder names another activation. The longer part of a pair that has too many
// tokens is cut. Rank waits and fails as [Encoder.Embed] does, and for an Encoder that does not
// rank.
func (e *Encoder) Rank(ctx context.Context, query string, texts []string) ([]float32, error) {
	var long sync.Mutex
	rows, err := e.call(ctx, "Rank", true, len(texts), func(i int) (*encoderText, error) {
		if len(query)+len(texts[i]) >= longText {
			long.Lock()
			defer long.Unlock()
		}
		ids, kinds, err := e.tokens.EncodePair(query, texts[i])
		if e.kinds == 0 {
			kinds = nil
		}
		return &encoderText{tokens: ids, kinds: kinds}, err
	})
	if err != nil {
		return nil, err
	}
	scores := make([]float32, len(rows))
	for i, row := range rows {
		scores[i] = row[0]
	}
	return scores, nil
}

// Close ends the calls that wait with [cgotorch.ErrClosed], waits for the batch on the device, and
// frees the model. A second Close waits too, and returns the same error.
func (e *Encoder) Close() error {
	if e == nil {
		return nil
	}
	e.shut()
	<-e.ended
	e.once.Do(func() { e.freed = e.free() })
	return e.freed
}

// free closes what the Encoder has.
func (e *encoding) free() error {
	errs := []error{e.stream.Synchronize()}
	errs = append(errs, e.captured.Close(), e.slabs.close())
	if e.net != nil {
		errs = append(errs, e.net.free())
	}
	return errors.Join(append(errs, e.weights.free(), e.stream.Close())...)
}
