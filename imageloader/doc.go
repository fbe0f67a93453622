// Package imageloader reads batches of labelled images from an archive. An archive is a .tgz, a
// .tar or a directory, or several of these.
//
// The label of an image is the directory that the image lies in. Names are CLASS/FILE or
// SPLIT/CLASS/FILE. In the shards of a WebDataset, the label is in the .cls or .json member of
// the same name (see [Labels]). A [Loader] decodes each image and crops or resizes it to one
// size. It delivers batches of uint8 pixels in memory that a device can copy from. The Loader
// itself uses no device. Package prefetcher copies the batches to a device.
//
// Programs that do not use LibTorch can use this loader too. Neither this package nor package
// decode needs LibTorch. `make loader` builds both packages on a machine without LibTorch. A
// batch is bytes and numbers, see [HostBatch]. A program that does not use LibTorch can page-lock
// the memory of the batches through [Loader.Pin].
//
//	loader, err := imageloader.Open("train.tgz", imageloader.Options{BatchSize: 128, Train: true})
//	...
//	for batch, err := range loader.Epoch(ctx) {
//		if err != nil {
//			return err
//		}
//		use(batch.Images, batch.Labels)
//		batch.Release()
//	}
//
// # What is read
//
// Members named .jpg, .jpeg, .jpe, .jfif, .png, .gif, .bmp, .tif, .tiff or .webp are images. All
// other members are passed over and counted. Hidden files, the "._" files of macOS, and links are
// passed over too. Links are never followed, because they could lead out of the archive. A loader
// reports the number of links to the log, once.
//
// An image is unusable if it is damaged, too large, or has an unsafe name. An unusable image is an
// error, or it is skipped if Options.Reading.MaxSkipRate allows that. It is never replaced by a
// blank image. An image always has its own label. The EXIF orientation is applied. torchvision's
// default loader ignores the orientation.
//
// A damaged archive is an error. An archive that is cut short is an error too, unless
// Options.Reading.AllowTruncated is set. If the classes are given, Open does not read a .tgz that
// is larger than Options.Reading.ShuffleBuffer. Errors in such a .tgz come when the first epoch
// reaches them.
//
// # Ranks
//
// With Options.Ranks several processes divide each epoch. A [State] of N ranks continues with any
// other number of ranks, also in the middle of an epoch. Options.Ranks.EachOnce is for
// evaluations: sums over all ranks are exact.
//
// One rank of a host makes the index of a new .tgz, with the threads of all ranks. The others wait
// in Open. Of several new .tgz each rank makes some of the indices. In an epoch each rank inflates
// only the blocks of its part. At the border of two parts both ranks inflate up to half of
// Options.Reading.ShuffleBuffer. Each rank keeps a .tgz in memory that fits into ShuffleBuffer.
//
// # Speed
//
// A .tgz is inflated on all cores. The first reading also makes an index of the .tgz (see
// Options.Index.Dir). With the index, the .tgz is read from many places at once. Options.Workers
// threads decode the images. Of a JPEG they decode only the part that the crop needs. Batches are
// decoded one after another without a pause. With Options.Train there is no pause between epochs
// either.
package imageloader
