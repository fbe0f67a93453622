package imageloader

import "github.com/streamtorch/streamtorch/imageloader/internal/archive"

// LabelSource says where the label of an image is from.
type LabelSource = archive.LabelSource

const (
	// LabelsFound looks at the first image of the first shard. If the image has a .cls of its key
	// beside it, or a .json of its key with Options.Labels.Field, labels are from members.
	// Otherwise labels are from directories. If other members hold labels then, Open fails with
	// ErrUnknownClass.
	LabelsFound = archive.LabelsFound
	// LabelsFromDirectories takes the name of the directory that an image lies in, whatever other
	// members there are.
	LabelsFromDirectories = archive.LabelsFromDirectories
	// LabelsFromMembers takes the label from the .cls or .json that belongs to an image, as in the
	// shards of a WebDataset, and in a folder with the same files. The members of a sample must
	// follow one another.
	LabelsFromMembers = archive.LabelsFromMembers
)
