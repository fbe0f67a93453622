package openai

import (
	"strings"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/internal/stops"
)

// room is the part of an answer that a token belongs to.
type room int

const (
	inContent room = iota
	inThought
	inCall   // of functions; its text is kept until it is whole
	inHeader // of harmony: the channel and who is meant
)

// part is what an answer grows by.
type part struct {
	room room // inContent, inThought or inCall
	text string
	call functionCall
}

// parts divides an answer, token by token, into content, thoughts and calls of functions. Content
// ends before the first stop, and any part before a special token whose name is one. A call that
// cannot be read stays content, so that nothing is lost.
type parts struct {
	form    *form
	tools   map[string]bool // functions that may be called; nil means that calls are content
	stream  tokenizer.Stream
	stops   stops.Finder
	room    room
	kept    strings.Builder // a header, or a call so far
	open    string          // the mark that began the call
	named   string          // the function whose arguments are kept; "" if the text names it
	once    bool            // the answer ends behind its first call
	forced  bool            // the answer is the object of a call
	bound   bool            // content is one JSON value: what comes before it is thoughts
	ends    map[int64]bool  // special tokens whose names are stops: they have no text to look in
	begun   bool            // content has come
	trim    bool            // whitespace that comes next separates parts
	turned  bool            // the last token was a mark
	calls   int
	stopped bool
	cut     bool // no token may follow, and the model has not ended the answer
	out     []part
}

func newParts(t *tokenizer.Tokenizer, f *form, stop []string, tools map[string]bool) *parts {
	p := &parts{form: f, tools: tools, stream: tokenizer.Stream{Tokenizer: t}, stops: stops.Finder{Texts: stop}}
	if f.kind == harmony {
		p.room = inHeader
	}
	for _, name := range stop {
		if len(name) > longestMark {
			continue
		}
		if id, ok := idOf(t, name); ok && t.Decode([]int64{id}) == "" {
			if p.ends == nil {
				p.ends = map[int64]bool{}
			}
			p.ends[id] = true
		}
	}
	return p
}

// longestMark is more than the names of special tokens have.
const longestMark = 256

// add takes a token, and returns what the answer grows by.
func (p *parts) add(id int64) []part {
	if p.ends[id] {
		out := p.end()
		p.stopped = true
		return out
	}
	mark := p.form.marks[id]
	if p.turned = false; mark == "" {
		p.grow(p.stream.Add(id))
		return p.take()
	}
	p.grow(p.stream.Flush())
	if p.turned = p.turn(mark); !p.turned {
		p.grow(p.stream.Add(id)) // a special token adds nothing
	}
	return p.take()
}

// end returns what is left behind the last token.
func (p *parts) end() []part {
	p.grow(p.stream.Flush())
	switch p.room {
	case inCall:
		p.called()
	case inHeader:
		p.addTo(inThought, p.keep())
	}
	p.flush()
	return p.take()
}

func (p *parts) take() []part {
	out := p.out
	p.out = nil
	return out
}

// keep returns what is kept, and forgets it.
func (p *parts) keep() string {
	text := p.kept.String()
	p.kept.Reset()
	return text
}

// grow adds text where the answer is.
func (p *parts) grow(text string) { p.addTo(p.room, text) }

// addTo adds text to a part.
func (p *parts) addTo(in room, text string) {
	if text == "" || p.stopped {
		return
	}
	if p.trim && in != inHeader {
		if text = strings.TrimLeftFunc(text, unicode.IsSpace); text == "" {
			return
		}
		p.trim = false
	}
	switch in {
	case inThought:
		p.out = append(p.out, part{room: inThought, text: text})
	case inContent:
		if p.form.kind == llama && p.tools != nil && !p.begun && p.calls == 0 {
			p.llama(text)
			return
		}
		p.content(text)
	default:
		p.kept.WriteString(text)
	}
}

// content adds text that is nothing else.
func (p *parts) content(text string) {
	p.begun = true
	text, p.stopped = p.stops.Add(text)
	if text != "" {
		p.out = append(p.out, part{room: inContent, text: text})
	}
}

// flush adds the content that may have become a stop.
func (p *parts) flush() {
	if text := p.stops.Flush(); text != "" {
		p.out = append(p.out, part{room: inContent, text: text})
	}
}

// llama looks whether an answer is a call, which begins with a brace.
func (p *parts) llama(text string) {
	switch start := strings.TrimLeftFunc(text, unicode.IsSpace); {
	case start == "" && !p.begun:
		p.content(text)
		p.begun = false // it may still be a call
	case strings.HasPrefix(start, "{"):
		p.room, p.open = inCall, ""
		p.kept.WriteString(text)
	default:
		p.content(text)
	}
}

// turn goes to another part at a mark. It reports false if the mark means nothing here.
func (p *parts) turn(mark string) bool {
	if p.form.kind == harmony {
		return p.harmony(mark)
	}
	switch {
	case mark == thinkMark && p.room == inContent && !p.begun && p.form.thinks():
		p.room, p.trim = inThought, true
	case mark == thoughtMark && p.room == inThought:
		p.room, p.trim = inContent, true
	case p.tools == nil || p.room == inThought:
		return false
	case mark == callMark && p.room == inContent && p.form.kind == hermes,
		mark == callsMark && p.room == inContent && p.form.kind == mistral,
		mark == pythonMark && p.room == inContent && p.form.kind == llama:
		p.flush()
		p.room, p.open = inCall, mark
	case mark == calledMark && p.room == inCall && p.form.kind == hermes:
		p.called()
		p.trim = true
	case p.room == inCall && p.form.kind == mistral:
		p.kept.WriteString(mark)
	default:
		return false
	}
	return true
}

// harmony is turn for gpt-oss. A header has a role, a channel and perhaps a recipient, such as
// "commentary to=functions.weather". What it is of follows behind a mark.
func (p *parts) harmony(mark string) bool {
	switch {
	case mark == messageMark && p.room == inHeader:
		header := p.keep()
		_, channel, _ := strings.Cut(header, channelMark)
		channel = strings.TrimSpace(channel)
		_, to, called := strings.Cut(header, "to=functions.")
		name, _, _ := strings.Cut(to, channelMark)
		name, _, _ = strings.Cut(name, constrainMark)
		name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
		switch {
		case called && p.tools[name]:
			p.flush()
			p.room, p.named, p.open = inCall, name, messageMark
		case strings.HasPrefix(channel, "final"), strings.HasPrefix(channel, "commentary") && !strings.Contains(header, "to=") && !p.bound:
			p.room = inContent
		default:
			p.room = inThought
		}
	case mark == startMark, mark == endMark, mark == functionMark, mark == returnMark:
		switch p.room {
		case inCall:
			p.called()
		case inHeader: // of no message
			p.addTo(inThought, p.keep())
		}
		p.flush()
		p.kept.Reset()
		p.room = inHeader
	case p.room == inHeader:
		p.kept.WriteString(mark)
	default:
		return false
	}
	return true
}

// force makes an answer the call of a function. If its name is "", the answer names it.
func (p *parts) force(name string) {
	p.room, p.named, p.once, p.forced = inCall, name, true, true
}

// called adds the calls that are kept.
func (p *parts) called() {
	text := p.keep()
	p.room = inContent
	var list []functionCall
	ok := false
	switch {
	case p.named != "":
		var call functionCall
		if call, ok = functionOf(p.named, text, !p.cut); !ok && p.forced { // max_tokens has cut its arguments
			p.calls++
			p.out = append(p.out, part{room: inCall, call: functionCall{p.named, text}})
			return
		}
		list = []functionCall{call}
	case p.form.kind == mistral && !p.forced:
		list, ok = mistralCalls(text, !p.cut)
	default:
		list, ok = callsOf(text)
	}
	for _, call := range list {
		ok = ok && p.tools[call.name]
	}
	if !ok {
		if p.open == callMark {
			text = callMark + text + calledMark
		}
		p.trim = false
		p.content(text)
		return
	}
	for _, call := range list {
		if p.once && p.calls == 1 {
			break
		}
		p.calls++
		p.out = append(p.out, part{room: inCall, call: call})
	}
	p.stopped = p.once
}
