package archive

import (
	"cmp"
	"fmt"
	"strings"
)

// NoImages returns the error of an archive without a wanted image. `ignored` counts its members
// that are no images, by reason. `splits` counts its images by their directories above the class,
// and `unsplit` those that have only a class.
func (a *Archive) NoImages(ignored, splits, unsplit map[string]int) error {
	reason := "no images in it; names must be CLASS/FILE or SPLIT/CLASS/FILE, with an extension such as .jpg, or those of a WebDataset, KEY.jpg beside KEY.cls"
	if split := a.options.Split; !a.options.allSplits() {
		reason = fmt.Sprintf("no images in split %q", split)
		if len(splits) > 0 {
			reason += "; there are the splits " + someCounts(splits)
		}
		if len(unsplit) > 0 {
			reason += "; there are images of no split, CLASS/FILE, in the directories " + someCounts(unsplit)
		}
		if len(splits)+len(unsplit) > 0 {
			reason += "; Options.Split \".\" takes all"
		}
	}
	if only := a.options.OnlyClasses; len(only) > 0 {
		reason = "no images of Options.Labels.Only (" + some(only) + "): " + reason
	}
	if len(ignored) > 0 {
		reason += " (passed over: " + counts(ignored) + ")" + cureOf(ignored)
	}
	return &Error{Path: a.Path, Reason: reason, Kind: ErrNoImages}
}

// cureOf returns the cure of an archive whose members were all passed over, for these reasons.
func cureOf(ignored map[string]int) (cure string) {
	for _, reason := range sortedKeys(ignored) {
		switch kind, _, _ := strings.Cut(reason, " ("); kind {
		case ignoredArchive:
			return "; unpack the archives in it, and give their folder, or a pattern such as FOLDER/*.tar"
		case ignoredSymbolicLink, ignoredHardLink:
			return "; put the files in the place of the links to them, as cp -rL does"
		case ignoredFormat:
			cure = "; convert the images to PNG or JPEG"
		case ignoredVideo:
			cure = cmp.Or(cure, "; extract the videos' frames as JPEG files")
		}
	}
	return cure
}

// counts returns the counts of m as a text, such as "3 hidden file, 1 not an image".
func counts(m map[string]int) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%d %s", m[key], key))
	}
	return strings.Join(parts, ", ")
}

// someCounts returns the first few counts of m, by name, as a text, such as "cat (12), dog (10)".
func someCounts(m map[string]int) string {
	var parts []string
	for _, key := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%s (%d)", Printable(key), m[key]))
	}
	return some(parts)
}
