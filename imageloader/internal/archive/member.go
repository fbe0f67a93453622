package archive

import (
	"path"
	"strings"
	"unicode/utf8"
)

// Entry is a member of an archive, with the name and size that the archive stores.
type Entry struct {
	Number int    // number of the member from 1, in the archive's order
	Name   string // as stored
	size   int64  // in bytes. -1 in a directory, where the size is known only when the file is open
	offset int64  // of the content in the .tar, or in the inflated .tgz
	kind   entryKind

	label, fault string // of an image of a WebDataset: its label, or the fault of the label
}

type entryKind int

const (
	regularFile entryKind = iota
	subdirectory
	symbolicLink
	hardLink
	sparseFile
	specialFile
)

// The reasons to pass over a member without an error. The texts appear in Stats and Report.
const (
	ignoredSymbolicLink = "symbolic link"
	ignoredHardLink     = "hard link"
	ignoredSpecialFile  = "special file"
	ignoredAppleDouble  = "AppleDouble file (._)"
	ignoredHidden       = "hidden file"
	ignoredNotImage     = "not an image"
	ignoredFurtherImage = "further image of a sample"
	ignoredFormat       = "image of a format that is not read" // the extension follows
	ignoredVideo        = "video"
	ignoredArchive      = "archive inside"
)

// unread has the extensions of files that may be missed, and the reasons to pass over them.
var unread = map[string]map[string]bool{
	ignoredFormat: words(".jxl .jp2 .j2k .jpf .jpx .jpm .jxr .avif .avifs .heic .heif .hif .svg .svgz .pdf .eps .psd .psb .xcf .exr .hdr .dcm .dicom .nii .fits .ico " +
		".tga .ppm .pgm .pbm .pnm .pfm .pcx .dds .ktx .qoi .bpg .flif .djvu .cr2 .cr3 .crw .nef .nrw .arw .srf .sr2 .dng .orf .rw2 .raf .pef .x3f .3fr"),
	ignoredVideo:   words(".mp4 .m4v .mov .avi .mkv .webm .mpg .mpeg .wmv .flv .3gp .ogv .mts .m2ts"),
	ignoredArchive: words(".tar .tgz .tbz .tbz2 .txz .tzst .gz .zip .7z .rar .xz .bz2 .zst .lz4"),
}

// passedOver returns the reason to pass over a member that is no image by its name.
func passedOver(name string) string {
	extension := strings.ToLower(path.Ext(name))
	for reason, extensions := range unread {
		if extensions[extension] {
			return reason + " (" + extension + ")"
		}
	}
	return ignoredNotImage
}

// imageExtensions are the extensions of images. Later the decoder decides whether a member is
// really an image.
var imageExtensions = map[string]bool{
	".jpg": true, ".jpeg": true, ".jpe": true, ".jfif": true, ".png": true, ".gif": true, ".bmp": true, ".tif": true,
	".tiff": true, ".webp": true,
}

// Location is the place of an image in an archive: SPLIT/CLASS/FILE, or CLASS/FILE with no split.
type Location struct {
	Split string // the first directory, "" where there is only one directory
	Above string // all directories above the class
	Class string // the last directory, or the label
}

// Admit judges a member without reading its content. For an image it returns the location, and
// the fault if the image is unusable. For any other member it returns the reason to ignore the
// member. All three results are empty for a directory, and for a label of a WebDataset.
//
// Links are never followed, because a link could lead outside the archive. Names with ".." or
// from the root are refused, because their class would be a guess. Nothing is ever written under
// these names.
func (s *Shard) Admit(e Entry) (where Location, ignored string, bad *Error) {
	switch e.kind {
	case subdirectory:
		return Location{}, "", nil
	case symbolicLink:
		return Location{}, ignoredSymbolicLink, nil
	case hardLink:
		return Location{}, ignoredHardLink, nil
	case specialFile:
		return Location{}, ignoredSpecialFile, nil
	}
	directories := strings.Split(e.Name, "/")
	for _, f := range directories {
		if f == ".." {
			return Location{}, "", s.badMember(e, nil, "unsafe name: it contains \"..\"")
		}
	}
	if strings.HasPrefix(e.Name, "/") {
		return Location{}, "", s.badMember(e, nil, "unsafe name: it begins at the root; pack the archive with relative names")
	}
	directories = strings.Split(path.Clean(e.Name), "/") // many archives have names such as "./train/cat/1.jpg"
	if reason := hidden(directories); reason != "" {
		return Location{}, reason, nil
	}
	last := len(directories) - 1
	if s.labels == LabelsFromMembers {
		return s.admitSample(e, directories[:last])
	}
	if last > 0 && !utf8.ValidString(directories[last-1]) {
		return Location{Above: strings.Join(directories[:last-1], "/")}, "", s.badMember(e, nil, "the name of its class is not UTF-8; rename the directory")
	}
	if !imageExtensions[strings.ToLower(path.Ext(directories[last]))] {
		return Location{}, passedOver(directories[last]), nil
	}
	if last == 0 {
		return Location{}, "", s.badMember(e, nil, "no class: it lies in no directory; names must be CLASS/FILE or SPLIT/CLASS/FILE or, as in a WebDataset, KEY.jpg beside KEY.cls")
	}
	where.Class = directories[last-1]
	if last > 1 {
		where.Split = directories[0]
		where.Above = strings.Join(directories[:last-1], "/")
	}
	return where, "", s.unusable(e)
}

// hidden returns the reason to pass over a member that is hidden, or "".
func hidden(directories []string) string {
	for _, f := range directories {
		if strings.HasPrefix(f, "._") || f == "__MACOSX" {
			return ignoredAppleDouble
		}
		if strings.HasPrefix(f, ".") {
			return ignoredHidden
		}
	}
	return ""
}

// admitSample judges a member of a WebDataset. `directories` holds the directories in the
// member's name.
func (s *Shard) admitSample(e Entry, directories []string) (where Location, ignored string, bad *Error) {
	switch _, what := keyOf(e.Name); {
	case what == "cls" || what == "json":
		return Location{}, "", nil
	case e.label == "" && e.fault == "" && isImageOf(what):
		return Location{}, ignoredFurtherImage, nil
	case e.label == "" && e.fault == "":
		return Location{}, passedOver(e.Name), nil
	}
	where = Location{Class: e.label, Above: strings.Join(directories, "/")}
	if len(directories) > 0 {
		where.Split = directories[0]
	}
	if e.fault != "" {
		return where, "", s.badMember(e, nil, "%s", e.fault)
	}
	return where, "", s.unusable(e)
}

// unusable returns the fault of an image that the archive holds as no loader reads it, or nil.
func (s *Shard) unusable(e Entry) *Error {
	if e.kind == sparseFile {
		return s.badMember(e, nil, "stored as a sparse file; pack the archive without --sparse")
	}
	return s.tooLarge(e)
}

// tooLarge returns the fault of a member that is larger than allowed, or nil.
func (s *Shard) tooLarge(e Entry) *Error {
	if e.size <= int64(s.MaxMemberBytes) {
		return nil
	}
	return s.badMember(e, nil, "too large: %d bytes, and Options.Reading.MaxMemberBytes allows %d", e.size, s.MaxMemberBytes)
}
