package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/flate"

	"github.com/streamtorch/streamtorch/internal/inflate"
	"github.com/streamtorch/streamtorch/internal/replace"
)

// table is the result of one pass through a shard. It holds the shard's members, and the places
// where a .tgz can be inflated from. An index file stores the table for the next Open.
type table struct {
	entries []Entry
	gzip    *inflate.Index // only of a .tgz
}

// entryBytes is the approximate memory of a member in a table and an index, without its name.
const entryBytes = 200

// mostTable returns the memory, in bytes, that the shard's table may take. Ordinary archives need
// less than a tenth of this memory, because a member takes at least some 20 bytes of a .tgz.
// Without a limit, a small file could fill any memory, for example a file with many equal headers
// or with names of a megabyte.
func (s *Shard) mostTable() int64 { return max(64<<20, 16*s.info.Size()) }

// An index file begins with the magic, the identity of the shard, and the length of the body. The
// compressed body follows, and then a CRC-32 of everything before.
const indexMagic = "streamtorch index 2\n"

const indexExtension = ".index"

// isIndexFile reports whether a path is that of an index file, of one that is being written, or of
// its lock.
func isIndexFile(path string) bool {
	path = strings.TrimSuffix(path, lockExtension)
	return strings.HasSuffix(path, indexExtension) || strings.Contains(filepath.Base(path), indexExtension+".new-")
}

// identity returns the size, the time and a hash of a shard. A different shard, or an earlier
// content of this shard, has a different identity.
func (s *Shard) identity() ([]byte, error) {
	id := binary.LittleEndian.AppendUint64(nil, uint64(s.info.Size()))
	id = binary.LittleEndian.AppendUint64(id, uint64(s.info.ModTime().UnixNano()))
	const pieces, piece = 16, 16 << 10
	hash := sha256.New()
	buf := make([]byte, piece)
	last := max(s.info.Size()-piece, 0)
	for i := range int64(pieces + 1) {
		n, err := s.file.ReadAt(buf, last*i/pieces)
		if err != nil && err != io.EOF {
			return nil, s.unreadable(err, "%v", bare(err))
		}
		hash.Write(buf[:n])
	}
	if s.labels == LabelsFromMembers { // the table depends on the label field, and on the rules of parse
		const rules = "3" // of another index file the labels may be read by other rules, and are not used
		io.WriteString(hash, s.LabelField+"\x00"+rules)
	}
	return hash.Sum(id), nil
}

// indexPaths returns the possible paths of the shard's index file. If there is an IndexDir, the
// only path is in that folder. Otherwise the paths are beside the shard and in the user's cache.
func (s *Shard) indexPaths() []string {
	if s.IndexDir != "" {
		return []string{filepath.Join(s.IndexDir, s.indexName())}
	}
	var paths []string
	if s.beside {
		paths = append(paths, s.Path+indexExtension)
	}
	if cache, err := os.UserCacheDir(); err == nil {
		paths = append(paths, filepath.Join(cache, "streamtorch", "index", s.indexName()))
	}
	return paths
}

// indexName returns the name of the shard's index file in a folder of index files. Files of the
// same name in different folders get different index names.
func (s *Shard) indexName() string {
	path, err := filepath.Abs(s.Path)
	if err != nil {
		path = s.Path
	}
	sum := sha256.Sum256([]byte(filepath.Dir(path)))
	return fmt.Sprintf("%s-%x%s", filepath.Base(path), sum[:6], indexExtension)
}

// loadTable returns the table in the shard's index file, and notes the path of the file. If there
// is no right index file, the table is nil.
func (s *Shard) loadTable() *table {
	var id []byte
	for _, path := range s.indexPaths() {
		data, err := readRegular(path, s.info.Size()+1<<20) // no index is as large as its archive
		if err != nil {
			continue
		}
		if id == nil {
			if id, err = s.identity(); err != nil {
				return nil
			}
		}
		if t, err := decodeTable(data, id, s.info.Size(), s.mostTable(), s.format == gzipTar); err == nil {
			s.indexFile = path
			s.Counts.indexFile(path)
			return t
		}
	}
	return nil
}

// readRegular reads a file of at most `most` bytes. If `path` is a pipe, readRegular fails and
// does not wait.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, errTable
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// storeTable writes the index file to the first path where that is possible. It returns this
// path.
func (s *Shard) storeTable(t *table) (string, error) {
	id, err := s.identity()
	if err != nil {
		return "", err
	}
	data, err := t.encode(id)
	if err != nil {
		return "", err
	}
	var errs []error
	for i, path := range s.indexPaths() {
		if s.makesFolder(i) {
			errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755))
		}
		if err := replace.Write(path, data); err == nil {
			return path, nil
		} else {
			errs = append(errs, err)
		}
	}
	return "", errors.Join(errs...)
}

func (t *table) encode(id []byte) ([]byte, error) {
	var body []byte
	if t.gzip != nil {
		points, err := t.gzip.AppendBinary(nil)
		if err != nil {
			return nil, err
		}
		body = binary.AppendUvarint(body, uint64(len(points)))
		body = append(body, points...)
	}
	body = binary.AppendUvarint(body, uint64(len(t.entries)))
	var last Entry
	for _, e := range t.entries {
		same := 0
		for same < min(len(last.Name), len(e.Name)) && last.Name[same] == e.Name[same] {
			same++
		}
		body = append(body, byte(e.kind))
		body = binary.AppendUvarint(body, uint64(same))
		body = binary.AppendUvarint(body, uint64(len(e.Name)-same))
		body = append(body, e.Name[same:]...)
		body = binary.AppendUvarint(body, uint64(e.offset-last.offset))
		size := uint64(0)
		if e.kind == regularFile {
			size = uint64(e.size)
		}
		body = binary.AppendUvarint(body, size)
		body = appendText(appendText(body, e.label), e.fault)
		last = e
	}
	var out bytes.Buffer
	out.WriteString(indexMagic)
	out.Write(id)
	out.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(body))))
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	w.Write(body)
	if err := w.Close(); err != nil {
		return nil, err
	}
	return binary.LittleEndian.AppendUint32(out.Bytes(), crc32.ChecksumIEEE(out.Bytes())), nil
}

func appendText(to []byte, text string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}

var errTable = errors.New("imageloader: not an index of this archive")

// decodeTable reads an index file of a shard of `size` bytes. The table takes at most `most`
// bytes of memory. decodeTable fails for any data that `encode` would not have written.
func decodeTable(data, id []byte, size, most int64, gzip bool) (*table, error) {
	head := len(indexMagic) + len(id) + 8
	if len(data) < head+4 || string(data[:len(indexMagic)]) != indexMagic || !bytes.Equal(data[len(indexMagic):][:len(id)], id) {
		return nil, errTable
	}
	end := len(data) - 4
	if crc32.ChecksumIEEE(data[:end]) != binary.LittleEndian.Uint32(data[end:]) {
		return nil, errTable
	}
	length := binary.LittleEndian.Uint64(data[head-8:])
	in := &tableReader{Reader: bufio.NewReader(io.LimitReader(flate.NewReader(bytes.NewReader(data[head:end])), int64(min(length, 1<<40))))}
	t := &table{}
	content := size
	if gzip {
		points := in.bytes(in.number(uint64(most)))
		t.gzip = new(inflate.Index)
		if in.err != nil || t.gzip.UnmarshalBinary(points) != nil || t.gzip.FileSize() != size {
			return nil, errTable
		}
		content = t.gzip.Size()
	}
	const header = 512
	count := in.number(uint64(content/header) + 1)
	var last Entry
	labels := map[string]string{}
	for i := uint64(0); i < count && in.err == nil; i++ {
		kind, err := in.ReadByte()
		if err != nil || entryKind(kind) > specialFile {
			return nil, errTable
		}
		same := in.number(uint64(len(last.Name)))
		name := last.Name[:same] + string(in.bytes(in.number(1<<20)))
		e := Entry{Number: int(i) + 1, Name: name, kind: entryKind(kind)}
		e.offset = last.offset + int64(in.number(uint64(content-last.offset)))
		e.size = int64(in.number(uint64(content - e.offset)))
		e.label, e.fault = in.text(labels), in.text(labels)
		if most -= int64(len(name)+len(e.label)+len(e.fault)) + entryBytes; most < 0 {
			return nil, errTable
		}
		t.entries = append(t.entries, e)
		last = e
	}
	if _, err := in.ReadByte(); in.err != nil || err != io.EOF {
		return nil, errTable
	}
	return t, nil
}

// tableReader reads numbers and bytes until the first error.
type tableReader struct {
	*bufio.Reader
	err error
}

// number reads a number. A number larger than `most` is an error.
func (r *tableReader) number(most uint64) uint64 {
	n, err := binary.ReadUvarint(r)
	if r.err == nil && err != nil {
		r.err = err
	}
	if r.err == nil && n > most {
		r.err = errTable
	}
	if r.err != nil {
		return 0
	}
	return n
}

// text reads a short text. Few different texts occur, and `known` keeps one copy of each.
func (r *tableReader) text(known map[string]string) string {
	text := string(r.bytes(r.number(1 << 10)))
	if one, ok := known[text]; ok {
		return one
	}
	known[text] = text
	return text
}

func (r *tableReader) bytes(n uint64) []byte {
	var out bytes.Buffer // grows with the data, not with the announced size
	got, err := io.CopyN(&out, r, int64(n))
	if r.err == nil && (err != nil || uint64(got) != n) {
		r.err = errTable
	}
	return out.Bytes()
}
