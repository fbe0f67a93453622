package main

// replacements has the code that replaces an edge's first statement, by the name of the edge. $
// stands for the statement itself. Without the replacement the mutant would not compile, or its
// test would fail for another reason. The statements of edges without a replacement are simply
// removed.
var replacements = map[string]string{
	"body-leaves-slot-to-dos":      "free := true",
	"body-records-its-end":         "e.Close()",
	"close-frees-slab":             "return nil",
	"copied-behind-copies":         "c.copied = x.On(cgotorch.DefaultStream(x.Device())).RecordTiming()",
	"copied-behind-drawn":          "x.AtEnd(func() { $ })",
	"copy-from-on-stream":          "C10_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, nullptr));",
	"copy-stream-closed":           "return nil",
	"copy-to-on-stream":            "C10_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, nullptr));",
	"do-leaves-slot-to-body":       "free := s.uses == 0",
	"do-leaves-slot-to-dos":        "free := s.lentTo == nil",
	"do-records-its-end":           "e.Close()",
	"dos-exclude-each-other":       "s.turn.mu.Lock()\ns.turn.held = true\ns.turn.mu.Unlock()",
	"end-before-frees":             "s.free()\n$",
	"event-query":                  "*done = 1;",
	"event-query-is-known":         "return nullptr;",
	"event-synchronize":            "done := make(chan struct{})\nif done != nil {\n e.mu.RUnlock()\n return nil\n}",
	"exec-restores-stream":         "current().exchangeStream(stream.stream);",
	"gradient-is-foreign":          "*out = grad.defined() ? new ct_tensor(grad, tensor->stream) : nullptr;",
	"gradient-returned-is-foreign": "out[i] = found[i].defined() ? new ct_tensor(found[i], x.stream->id) : nullptr;",
	"kernel-on-stream":             "how.stream = nullptr;\n$",
	"lent-skip-go":                 "y := x.s.own(ct.TensorAlias(t.h))",
	"unit-each-stream-waits":       "if len(slot.awaited) > 0 {\n return\n}",
	"unit-refill-behind-uses":      "behind := f.uses[:0]",
	"unit-release-of-each-stream":  "s.released = map[*cgotorch.Stream]*cgotorch.Event{on: e}",
	"unit-release-records":         "u.release(x.Stream(), nil)",
	"read-behind-copy":             "r.event, _ = DefaultStream(x.Device()).Record()",
	"read-event-freed":             "return nil",
	"ready-behind-normalise":       "x.AtEnd(func() { $ })",
	"record-is-known":              "checker::Known known;",
	"recording-outlives-event": "streams_[event.recording->stream].emplace(event.recording->number,\n" +
		"Wait{{event.recording.get(), [](const Recording*) {}}, known ? event.known : nullptr, token});",
	"stream-query": "*done = 1;",
	"stream-wait":  "return nil",
	"tensor-freed": "t.take()",
}
