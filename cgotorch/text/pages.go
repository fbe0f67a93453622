package text

type pages struct{}

func (p *pages) close() error { return nil }
