// Package filelock locks files between processes. A lock belongs to an open file and ends with it,
// so also with its process. It keeps no one from reading or writing the file.
package filelock
