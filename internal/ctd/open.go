package ctd

import (
	"sync"

	"github.com/streamtorch/streamtorch/internal/library"
)

// Ready opens the library, and fills the table. It waits for that once, and fails as package
// library says. Each function that takes no handle calls it.
var Ready = sync.OnceValue(func() error {
	return library.Fill(library.Decoder, functions[:], fill, ABIVersion, HeaderABIVersion)
})
