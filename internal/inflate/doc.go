// Package inflate reads gzip files on several cores, and anywhere in them once they have been read
// through.
//
// A [Reader] inflates a file from its beginning to its end, several parts of it at a time, and
// makes an [Index]. The index has the places where inflating can begin, with the bytes before them
// that inflating needs. With the index a [File] inflates any part of the content, for any number of
// goroutines at a time. It needs no more than a few MiB before that part.
//
// The file is of any origin: gzip, pigz, bgzip or tar. Some blocks cannot be recognised: those of
// gzip's fixed code, or of a gzip file stored in a gzip file. One core at a time inflates those.
package inflate
