package openai

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
)

// call is a request.
type call struct {
	h     *Handler
	w     http.ResponseWriter
	r     *http.Request
	began time.Time
	body  *bodies.Body
	in    *fields // of the body
	model *served
	sent  bool // the answer has begun
}

// errGone means that the client takes nothing any more.
var errGone = errors.New("the client has left")

// refusal is an error that the request is to blame for.
type refusal struct {
	status int    // 0 means 400
	param  string // the field, or ""
	code   string // of OpenAI, or ""
	text   string
}

func (r *refusal) Error() string {
	if r.param == "" {
		return r.text
	}
	return r.param + ": " + r.text
}

func (r *refusal) Unwrap() error { return cgotorch.ErrInvalidArgument }

// refuse returns a [refusal] with the status 400 for a field.
func refuse(param, format string, args ...any) error {
	return &refusal{param: param, text: fmt.Sprintf(format, args...)}
}

// bears fails with the status 401 if a request lacks the token. Its time tells nothing of the
// token.
func (h *Handler) bears(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	want, got := sha256.Sum256([]byte(h.o.Token)), sha256.Sum256([]byte(token))
	if h.o.Token == "" || subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
		return nil
	}
	return &refusal{status: http.StatusUnauthorized, code: "invalid_api_key", text: "the request does not bear the server's token: send the header Authorization: Bearer TOKEN"}
}

// read reads the body, and finds its model. The caller gives the body back, also after an error. It
// calls Done of the model's `under`, unless there is an error.
func (c *call) read() (err error) {
	if c.body, err = c.h.bodies.Read(c.w, c.r); err != nil {
		return err
	}
	if err = c.h.bodies.More(c.body, 4*int64(len(c.body.Bytes))); err != nil { // what its JSON becomes
		return err
	}
	if c.in, err = newFields("", c.body.Bytes); err == nil {
		err = wellFormed(c.body.Bytes)
	}
	if err != nil {
		return err
	}
	name := ""
	c.in.text("model", &name)
	if c.in.err == nil && name == "" {
		return refuse("model", "want the name of a model; GET /v1/models lists them")
	}
	if c.in.err != nil {
		return c.in.err
	}
	c.model, err = c.h.use(name)
	return err
}

// decodes fails if the model has no Decoder.
func (c *call) decodes() error {
	if c.model.Decoder == nil {
		return refuse("model", "%q makes no texts: ask /v1/embeddings or /v1/rerank", c.model.Name)
	}
	return nil
}

// encodes fails if the model makes no vectors, or no scores.
func (c *call) encodes(ranks bool) error {
	switch {
	case c.model.Encoder == nil:
		return refuse("model", "%q makes neither vectors nor scores: ask /v1/chat/completions", c.model.Name)
	case ranks && !c.model.ranks:
		return refuse("model", "%q makes vectors and no scores: ask /v1/embeddings", c.model.Name)
	case !ranks && c.model.ranks:
		return refuse("model", "%q makes scores and no vectors: ask /v1/rerank", c.model.Name)
	}
	return nil
}

// marshal is json.Marshal without escapes of <, > and &.
func marshal(v any) ([]byte, error) {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	err := to.Encode(v)
	return bytes.TrimSuffix(text.Bytes(), []byte{'\n'}), err
}

// reply writes a whole answer. It fails as [call.write] does.
func (c *call) reply(v any) error {
	text, err := marshal(v)
	if err != nil {
		return err // a NaN of a model has no JSON
	}
	return c.write("application/json", append(text, '\n'))
}

// event writes a part of a streamed answer, and flushes it. It fails as [call.write] does.
func (c *call) event(v any) error {
	text, err := marshal(v)
	if err != nil {
		return err
	}
	return c.line(text)
}

// line writes an event whose data is a text in one line.
func (c *call) line(text []byte) error {
	line := make([]byte, 0, len(text)+8)
	line = append(append(append(line, "data: "...), text...), "\n\n"...)
	if err := c.write("text/event-stream", line); err != nil {
		return err
	}
	if err := http.NewResponseController(c.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// write writes a part of an answer, and the header before the first one. The client has
// Options.Stall to take each 64 KiB of it. write fails with errGone.
func (c *call) write(kind string, text []byte) error {
	if !c.sent {
		c.w.Header().Set("Content-Type", kind)
		if kind != "application/json" {
			c.w.Header().Set("Cache-Control", "no-cache")
		}
	}
	c.sent = true
	for piece := range slices.Chunk(text, 64<<10) {
		// It fails only where w has no connection, as in a test.
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.h.o.Stall))
		if _, err := c.w.Write(piece); err != nil {
			return fmt.Errorf("%w: %w", errGone, err)
		}
	}
	return nil
}

// failure is an error as OpenAI writes it.
type failure struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

// kinds are OpenAI's types of errors.
var kinds = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusNotFound: "not_found_error", http.StatusTooManyRequests: "rate_limit_exceeded",
	http.StatusBadRequest: "invalid_request_error", http.StatusMethodNotAllowed: "invalid_request_error", http.StatusRequestEntityTooLarge: "invalid_request_error", http.StatusGatewayTimeout: "timeout",
}

// fail tells the client why its request failed: by an event if the answer has begun, or else by a
// status.
func (c *call) fail(err error) {
	if errors.Is(err, errGone) {
		return
	}
	status := statusOf(c.r.Context(), err)
	var f failure
	f.Error.Message, f.Error.Type = clipped(err.Error(), 4000), kinds[status]
	if f.Error.Type == "" {
		f.Error.Type = "server_error"
	}
	var own *refusal
	if errors.As(err, &own) {
		if own.param != "" {
			param := clipped(own.param, 400)
			f.Error.Param = &param
		}
		if own.code != "" {
			f.Error.Code = &own.code
		}
	}
	if status == http.StatusTooManyRequests {
		f.Error.Code = &f.Error.Type
	}
	if c.sent {
		_ = c.event(f) // an error means that the client is gone
		return
	}
	if status == http.StatusTooManyRequests {
		c.w.Header().Set("Retry-After", "1")
	}
	if status == http.StatusUnauthorized {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	_ = c.reply(f)
}

// over returns why the request's context has ended, or nil.
func (c *call) over() error { return context.Cause(c.r.Context()) }
