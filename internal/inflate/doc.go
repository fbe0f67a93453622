// Package inflate reads gzip files on several cores, and anywhere in them once they have been read through.
//
// A [Reader] inflates a file from its beginning to its end, several parts of it at a time, and makes an [Index]: places where
// inflating can begin, with the bytes before them that it needs there. With the index a [File] inflates any part of the
// content, for any number of goroutines at a time, and needs no more than a few MiB before that part.
//
// Nothing is asked of the file: it is what gzip, pigz, bgzip or tar made. Where its blocks cannot be recognised (those of
// gzip's fixed code, or a gzip file stored in a gzip file), it is inflated by one core at a time.
package inflate
