package openai

// modelInfo tells of a model.
type modelInfo struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
	Context int    `json:"max_model_len,omitempty"` // tokens of a conversation
}

func (s *served) info() modelInfo {
	i := modelInfo{ID: s.Name, Object: "model", Created: s.since.Unix(), Owner: "streamtorch"}
	if s.Batcher != nil {
		i.Context = s.Batcher.Context()
	}
	return i
}

// list tells of all models.
func (c *call) list() error {
	list := []modelInfo{}
	for _, name := range c.h.Names() {
		if s, err := c.h.use(name); err == nil { // it may be gone
			list = append(list, s.info())
			s.under.Done()
		}
	}
	return c.reply(map[string]any{"object": "list", "data": list})
}

// describe tells of one model.
func (c *call) describe() (err error) {
	if c.model, err = c.h.use(c.r.PathValue("name")); err != nil {
		return err
	}
	defer c.model.under.Done()
	return c.reply(c.model.info())
}
