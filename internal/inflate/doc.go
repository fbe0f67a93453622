// Package inflate reads gzip files on several cores. After one pass through a file, it can read
// the file from any offset.
//
// A [Reader] inflates a file from its beginning to its end, several parts of it at a time. It
// also makes an [Index]. The index holds the places where inflating can begin, and the earlier
// bytes that inflating needs there. With the index a [File] inflates any part of the content, for
// any number of goroutines at a time. Usually it inflates at most a few MiB more than that part.
//
// The file may be of any origin: gzip, pigz, bgzip or tar. Two kinds of blocks cannot be
// recognised: blocks with gzip's fixed code, and blocks of a gzip file stored in a gzip file. One
// core at a time inflates such blocks.
package inflate
