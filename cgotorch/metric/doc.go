// Package metric judges predictions of classes. Its functions enqueue work on the device and do not
// wait. Their results are tensors that the caller adds up over batches, and reads at the end.
package metric
