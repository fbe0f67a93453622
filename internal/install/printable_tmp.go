package install

func printable(text string) string { return text }
