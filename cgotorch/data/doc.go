// Package data reads data that are not archives of images, and makes batches of them.
//
// A data set is a [Dataset] or a [Stream]. A Dataset gives any sample at any time: a [Table] of
// columns in memory, the [Files] of a folder, or the rows of a database, see [NewQuery]. A Stream
// is read from its beginning, and may be larger than memory: that of [OpenCSV], [OpenJSONLines] or
// [NewSequence], or of the Parquet files of package parquet. A [Loader] makes batches from either.
// Its batches are in host memory. Package prefetcher copies them to a device.
//
//	table, err := data.NewTable(data.Of("x", pixels, 28, 28), data.Of("y", labels))
//	loader, err := data.NewLoader(table, data.Options{BatchSize: 64, Shuffle: true})
//	defer loader.Close()
//	step := func(x *cgotorch.Exec, batch *data.Batch) error {
//		in := batch.Use(x)
//		loss := nn.CrossEntropy(x, model.Forward(x, in["x"]), in["y"], nn.CrossEntropyOptions{})
//		…
//	}
//	n, err := cgotorch.DoEach(stream, loader.Epoch(ctx), step)
//
// DoEach releases each batch after its Do. Code that loops over an Epoch itself calls Release.
//
// A file cannot make the readers of this package take unbounded memory, or panic. Rows and fields
// have limits in bytes. Errors name the file, the row and the column.
//
// # Order
//
// The order of an epoch depends only on the seed, the epoch, the options and the data. It does not
// depend on the number of workers. A Dataset is permuted as a whole. A Stream is cut into windows
// of Options.ShuffleBuffer samples, and each window is permuted. So a stream whose file is sorted
// by label needs a large window, or a file in another order.
//
// With Options.World, rank r takes the samples r, r+World, r+2*World and so on of that order. All
// ranks get the same number of batches. If the samples do not divide evenly, some samples of the
// last round are given to two ranks. With DropRest the last round is left out instead. With
// EachOnce some ranks get one sample less. A [State] continues with another number of ranks.
package data
