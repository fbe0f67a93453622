// Package inflate reads gzip files on several cores. After one pass through a file, it can read
// the file from any offset.
//
// A [Reader] inflates a file from its beginning to its end, several parts of it at a time. It
// also makes an [Index]. The index holds the places where inflating can begin, and the earlier
// bytes that inflating needs there. With the index a [File] inflates any part of the content, for
// any number of goroutines at a time. Usually it inflates at most a few MiB more than that part.
//
// The file may be of any origin: gzip, pigz, bgzip or tar. A Reader cannot find two kinds of
// blocks: blocks with deflate's fixed code, and stored blocks whose content is another gzip file.
// Only one core at a time inflates these blocks.
package inflate
