package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// writeTable writes the rows of a file, which an earlier run has printed, as a table in Markdown.
func writeTable(path string, to io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	fmt.Fprint(to, "| | streamtorch | unit | peer | peer's value | ratio |\n| --- | --- | --- | --- | --- | --- |\n")
	for rows := json.NewDecoder(file); ; {
		var r row
		if err := rows.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		peer := ""
		if r.Peer != nil {
			peer = *r.Peer
		}
		fmt.Fprintf(to, "| %s | %s | %s | %s | %s | %s |\n", r.Name, cell(&r.Value), r.Unit, peer, cell(r.PeerValue), cell(r.Ratio))
	}
}

// cell returns a number of a row as text, or nothing if the row has none.
func cell(n *number) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(float64(*n))
}
