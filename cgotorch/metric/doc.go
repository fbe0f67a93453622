// Package metric judges predictions of classes. Its functions enqueue work on the device and do not
// wait. Their results are tensors that the caller adds up over batches, and reads at the end. On
// the CPU they read their numbers, and refuse NaN and unknown classes. [cgotorch.Exec.NoWaits]
// counts that as a wait.
package metric
